#pragma once

#include <algorithm>
#include <string>
#include <vector>
#include "base/batch.h"
#include "base/detail/references.h"
#include "base/detail/tensor_layout.h"
#include "graph/record/address_watch.h"

namespace duet {

// Where tensors lie that captured steps read and write, and in which shape. A weight that moved since (set_data, a
// reset member, t_()) would be trained at its old place.
class StorageWatch {
 public:
  void write(const NamedTensors& tensors) {
    entries_.clear();
    for (const auto& [name, tensor] : tensors) {
      if (!tensor.has_storage()) continue;
      entries_.push_back({name, tensor, tensor.storage().unsafeGetStorageImpl(), tensor.storage().data(),
                          tensor.storage_offset(), TensorLayout(tensor), 0});
    }
  }
  // Watches nothing from here on.
  void clear() { entries_.clear(); }

  // Name of the first tensor that no longer lies as it did; empty if none moved.
  std::string moved() const {
    for (const Entry& entry : entries_) {
      if (entry.has_moved()) return entry.name;
    }
    return {};
  }
  // What happened since the last look: which tensor moved, as above, and whether somebody dropped a reference to one,
  // as a module does that has let go of a parameter that the step still trains.
  struct Change {
    std::string moved{};
    bool references_lost = false;
  };
  // `may_be_hidden`: there may be a new one for each that was lost.
  Change look(bool may_be_hidden = false) {
    Change change;
    for (Entry& entry : entries_) {
      if (change.moved.empty() && entry.has_moved()) change.moved = entry.name;
      const std::size_t now = references_to(entry.tensor);
      const bool lost = may_be_hidden || now < entry.references;
      entry.lost = entry.lost || lost;
      change.references_lost = change.references_lost || lost;
      entry.references = now;
    }
    return change;
  }
  // Whether it watches a tensor over that memory to which all refer as they did, by what look() has found.
  bool is_kept(const c10::StorageImpl* memory) const {
    return std::ranges::any_of(
        entries_, [&](const Entry& entry) { return entry.storage == memory && !entry.lost && !entry.has_moved(); });
  }
  // What was lost until now no longer counts.
  void accept_lost() {
    for (Entry& entry : entries_) entry.lost = false;
  }
  // Has the other watch notice who takes the address of one.
  void guard(AddressWatch& addresses) const {
    for (const Entry& entry : entries_) addresses.guard(entry.tensor);
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
    const void* data;  // of the storage
    int64_t offset;
    TensorLayout layout;
    std::size_t references;
    bool lost = false;  // a reference

    bool has_moved() const {
      const c10::Storage& now = tensor.unsafeGetTensorImpl()->unsafe_storage();
      return now.unsafeGetStorageImpl() != storage || now.data() != data || tensor.storage_offset() != offset ||
             !layout.is_of(tensor);
    }
  };
  std::vector<Entry> entries_;
};

}  // namespace duet
