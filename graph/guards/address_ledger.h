#pragma once

#include <string>
#include <vector>
#include "base/batch.h"

namespace duet {

// Where the weights and state lie that captured steps read and write. A tensor that moved since (set_data, a reset
// member) would be trained at its old place.
class AddressLedger {
 public:
  void write(const NamedTensors& tensors);
  // Watches nothing from here on.
  void clear() { entries_.clear(); }

  // Name of the first tensor whose memory is no longer where it was; empty if none moved.
  std::string moved() const;
  // Whether somebody took or dropped a reference to a tensor: a module may have let go of a parameter that the step
  // still trains.
  bool references_changed() const;
  // Accepts the references there are now.
  void refresh_references();

 private:
  struct Entry {
    std::string name;
    at::Tensor tensor;
    const void* storage;
    const void* data;
    std::size_t references;
  };
  std::vector<Entry> entries_;
};

}  // namespace duet
