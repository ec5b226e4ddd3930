#pragma once

#include <exception>
#include <string>
#include <utility>
#include <vector>
#include "base/log.h"
#include "base/state_dict.h"

namespace duet {

// Loads states into several parts as one: unless commit() is reached, every part gets back what it had. It copies what
// the parts had, so the largest part, which checks before it changes anything, is loaded last and without it.
class LoadTransaction {
 public:
  LoadTransaction() = default;
  ~LoadTransaction() {
    for (auto it = loaded_.rbegin(); it != loaded_.rend(); ++it) {
      try {
        it->part->load_state_dict(it->before);
      } catch (const std::exception& error) {  // a part that refuses what it gave itself
        log_error(std::string("[LoadTransaction] a part cannot take back its own state: ") + error.what());
      }
    }
  }
  LoadTransaction(const LoadTransaction&) = delete;
  LoadTransaction& operator=(const LoadTransaction&) = delete;

  // Throws what the part throws. `part` must outlive this.
  void load(Stateful& part, const StateDict& state) {
    // A state_dict() lends live tensors, which the load is about to change. Noted first: a part that fails half way
    // gets back what it had, too.
    StateDict before;
    {
      const StateDict lent = part.state_dict();
      for (const auto& [name, tensor] : lent.tensors()) before.set(name, tensor.detach().clone());
      for (const auto& [name, value] : lent.values()) before.set(name, value);
    }
    loaded_.push_back({&part, std::move(before)});
    part.load_state_dict(state);
  }
  void commit() { loaded_.clear(); }

 private:
  struct Loaded {
    Stateful* part;
    StateDict before;
  };
  std::vector<Loaded> loaded_;
};

}  // namespace duet
