#include "graph/guards/address_ledger.h"

namespace duet {

void AddressLedger::write(const NamedTensors& tensors) {
  entries_.clear();
  for (const auto& [name, tensor] : tensors) {
    if (!tensor.has_storage()) continue;
    entries_.push_back({name, tensor, tensor.storage().unsafeGetStorageImpl(), tensor.const_data_ptr(), 0});
  }
}

std::string AddressLedger::moved() const {
  for (const Entry& entry : entries_) {
    const bool same =
        entry.tensor.storage().unsafeGetStorageImpl() == entry.storage && entry.tensor.const_data_ptr() == entry.data;
    if (!same) return entry.name;
  }
  return {};
}

bool AddressLedger::references_changed() const {
  for (const Entry& entry : entries_) {
    if (entry.tensor.use_count() != entry.references) return true;
  }
  return false;
}

void AddressLedger::refresh_references() {
  for (Entry& entry : entries_) entry.references = entry.tensor.use_count();
}

}  // namespace duet
