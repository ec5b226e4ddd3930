#include "graph/record/address_watch.h"
#include <iterator>
#include <c10/core/impl/COW.h>
#include "base/detail/stack_tensors.h"
#include "graph/guards/shadow_storage.h"

namespace duet {

namespace {

namespace cow = c10::impl::cow;

// Of locked memory nobody gets the address, so it may be looked at, but stays as it is.
bool is_plain_memory(c10::StorageImpl& storage) { return !cow::is_cow_data_ptr(storage._mutable_data_ptr_no_checks()); }

void make_plain(c10::StorageImpl& storage) {
  if (!is_plain_memory(storage) && !is_locked(storage)) storage.mutable_data();
}

// The clone goes at once.
bool make_copy_on_write(c10::StorageImpl& storage) {
  return cow::has_simple_data_ptr(storage) && cow::lazy_clone_storage(storage) != nullptr;
}

}  // namespace

void AddressWatch::guard(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return;
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  const bool has_memory = tensor.is_cpu() && storage->nbytes() > 0 && storage->data() != nullptr;
  if (!has_memory || guarded_.count(storage) + exempt_.count(storage) > 0 || !make_copy_on_write(*storage)) return;
  guarded_.emplace(storage, tensor.storage().getWeakStorageImpl());
}

void AddressWatch::exempt(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return;
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  exempt_.emplace(storage, tensor.storage().getWeakStorageImpl());
  if (guarded_.erase(storage) > 0) make_plain(*storage);
}

bool AddressWatch::taken() {
  bool taken = false;
  for (auto entry = guarded_.begin(); entry != guarded_.end();) {
    const auto storage = entry->second.lock();
    const bool is_taken = storage && is_plain_memory(*storage);
    taken = taken || is_taken;
    entry = !storage || is_taken ? guarded_.erase(entry) : std::next(entry);
  }
  return taken;
}

void AddressWatch::lend(const torch::jit::Stack& stack, std::size_t arguments) {
  for_each_tensor(stack, arguments, [this](const at::Tensor& tensor) { lend(tensor); });
}

void AddressWatch::lend(const at::Tensor& tensor) {
  if (!tensor.has_storage()) return;
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  if (guarded_.count(storage) == 0 || is_plain_memory(*storage)) return;
  make_plain(*storage);
  lent_.push_back(storage);
}

// An op may have given the storage other memory.
void AddressWatch::take_back() {
  while (!lent_.empty()) {
    const c10::StorageImpl* const lent = lent_.back();
    lent_.pop_back();
    const auto entry = guarded_.find(lent);
    const auto storage = entry->second.lock();
    if (!storage || !make_copy_on_write(*storage)) guarded_.erase(entry);
  }
}

void AddressWatch::pause() {
  for (auto& entry : guarded_) {
    if (const auto storage = entry.second.lock()) make_plain(*storage);
  }
}

void AddressWatch::stop() {
  pause();
  guarded_.clear();
}

void AddressWatch::resume() {
  for (auto entry = guarded_.begin(); entry != guarded_.end();) {
    const auto storage = entry->second.lock();
    const bool goes_on = storage && (is_locked(*storage) || make_copy_on_write(*storage));
    entry = goes_on ? std::next(entry) : guarded_.erase(entry);
  }
}

}  // namespace duet
