#pragma once

#include <string>
#include <vector>
#include "base/batch.h"
#include "base/detail/references.h"
#include "base/detail/tensor_layout.h"

namespace duet {

// Where the weights and state lie that captured steps read and write, and in which shape. A tensor that moved since
// (set_data, a reset member, t_()) would be trained at its old place.
class AddressLedger {
 public:
  void write(const NamedTensors& tensors) {
    entries_.clear();
    for (const auto& [name, tensor] : tensors) {
      if (!tensor.has_storage()) continue;
      entries_.push_back(
          {name, tensor, tensor.storage().unsafeGetStorageImpl(), tensor.const_data_ptr(), TensorLayout(tensor), 0});
    }
  }
  // Watches nothing from here on.
  void clear() { entries_.clear(); }

  // Name of the first tensor that no longer lies as it did; empty if none moved.
  std::string moved() const {
    for (const Entry& entry : entries_) {
      const at::Tensor& now = entry.tensor;
      const bool same = now.storage().unsafeGetStorageImpl() == entry.storage && now.const_data_ptr() == entry.data &&
                        entry.layout.is_of(now);
      if (!same) return entry.name;
    }
    return {};
  }
  // Whether somebody dropped a reference to a tensor: a module may have let go of a parameter that the step still
  // trains.
  bool references_lost() const {
    for (const Entry& entry : entries_) {
      if (references_to(entry.tensor) < entry.references) return true;
    }
    return false;
  }
  // Accepts the references there are now.
  void refresh_references() {
    for (Entry& entry : entries_) entry.references = references_to(entry.tensor);
  }

 private:
  struct Entry {
    std::string name;
    at::Tensor tensor;
    const void* storage;
    const void* data;
    TensorLayout layout;
    std::size_t references;
  };
  std::vector<Entry> entries_;
};

}  // namespace duet
