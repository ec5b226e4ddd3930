#pragma once

#include <vector>
#include "base/state_dict.h"

namespace duet {

// Loads states into several parts as one: unless commit() is reached, every part gets back what it had. It copies what
// the parts had, so the largest part, which checks before it changes anything, is loaded last and without it.
class LoadTransaction {
 public:
  LoadTransaction() = default;
  ~LoadTransaction();
  LoadTransaction(const LoadTransaction&) = delete;
  LoadTransaction& operator=(const LoadTransaction&) = delete;

  // Throws what the part throws. `part` must outlive this.
  void load(Stateful& part, const StateDict& state);
  void commit() { loaded_.clear(); }

 private:
  struct Loaded {
    Stateful* part;
    StateDict before;
  };
  std::vector<Loaded> loaded_;
};

}  // namespace duet
