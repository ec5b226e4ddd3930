#include "graph/guards/outside_tensors.h"
#include <unordered_set>
#include "base/detail/references.h"

namespace duet {

OutsideTensors::OutsideTensors(const StepProgram& recording, const NamedTensors& known) {
  std::unordered_set<const void*> others;
  for (const auto& item : known) others.insert(item.second.storage().unsafeGetStorageImpl());
  for (const ValueTable::Value& value : recording.table.values()) {
    const ValueTable::Storage& storage = recording.table.storages()[value.storage];
    const bool outside = storage.external && !storage.contents && !storage.local && !storage.changes && !storage.input;
    if (!outside || !value.original.defined() || others.count(storage.strong.unsafeGetStorageImpl()) > 0) continue;
    tensors_.push_back({value.original, value.original.storage().unsafeGetStorageImpl()});
  }
}

bool OutsideTensors::lost_references() {
  bool lost = false;
  for (Watched& watched : tensors_) {
    const std::size_t now = references_to(watched.tensor);
    lost = lost || now < watched.references || watched.tensor.storage().unsafeGetStorageImpl() != watched.storage;
    watched.references = now;
  }
  return lost;
}

void OutsideTensors::guard(AddressWatch& addresses) const {
  for (const Watched& watched : tensors_) addresses.guard(watched.tensor);
}

}  // namespace duet
