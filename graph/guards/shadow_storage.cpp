#include "graph/guards/shadow_storage.h"
#include <exception>
#include <string_view>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/COW.h>
#include "base/error.h"

namespace duet {

namespace {

// LibTorch can set these flags, for tensors without data, but not take them back. An explicit instantiation may name
// private members.
using Flag = bool c10::StorageImpl::*;
template <int which>
struct Named {};
template <int which, Flag member>
struct OpenFlag {
  friend Flag flag(Named<which>) { return member; }
};
Flag flag(Named<0>);
Flag flag(Named<1>);
template struct OpenFlag<0, &c10::StorageImpl::throw_on_immutable_data_ptr_>;
template struct OpenFlag<1, &c10::StorageImpl::has_mutable_data_ptr_check_>;

Flag throws_on_access() { return flag(Named<0>()); }
Flag checks_mutable_access() { return flag(Named<1>()); }

}  // namespace

c10::intrusive_ptr<c10::StorageImpl> make_shadow(std::size_t bytes, c10::Device device) {
  auto shadow = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), static_cast<int64_t>(bytes),
                                                      c10::DataPtr(nullptr, device), c10::GetAllocator(device.type()),
                                                      /*resizable=*/true);
  turn_into_shadow(*shadow);
  return shadow;
}

bool is_shadow(const c10::StorageImpl& storage) {
  return storage.*throws_on_access() && const_cast<c10::StorageImpl&>(storage)._mutable_data_ptr_no_checks() == nullptr;
}

void lock(c10::StorageImpl& storage) {
  storage.*throws_on_access() = true;
  storage.*checks_mutable_access() = true;
}

void unlock(c10::StorageImpl& storage) {
  storage.*throws_on_access() = false;
  storage.*checks_mutable_access() = c10::impl::cow::is_cow_data_ptr(storage._mutable_data_ptr_no_checks());
}

bool is_locked(const c10::StorageImpl& storage) { return storage.*throws_on_access(); }

void turn_into_shadow(c10::StorageImpl& storage) {
  storage.*throws_on_access() = true;
  storage.set_data_ptr_noswap(c10::DataPtr(nullptr, storage.device()));
}

void fill_shadow(c10::StorageImpl& shadow, c10::DataPtr memory) {
  shadow.*throws_on_access() = false;
  shadow.set_data_ptr_noswap(std::move(memory));
}

void check_that_shadows_work() {
  const auto refuses = [](const at::Tensor& tensor) {
    try {
      (void)tensor.mutable_data_ptr();
    } catch (const std::exception& error) {
      return is_shadow_access(error);
    }
    return false;
  };
  const auto probe = [&] {
    const at::Tensor shadow = at::empty({1});
    turn_into_shadow(*shadow.storage().unsafeGetStorageImpl());
    const at::Tensor locked = at::empty({1});
    lock(*locked.storage().unsafeGetStorageImpl());
    const bool refused = refuses(shadow) && refuses(locked);
    unlock(*locked.storage().unsafeGetStorageImpl());
    return refused && !refuses(locked);
  };
  static const bool work = probe() || probe();  // where memory runs out LibTorch's text is cut short
  require<GraphError>(work,
                      "[TraceCheck] this LibTorch does not refuse access to storages without data; duet's graph mode "
                      "supports LibTorch 2.11 to 2.15, use that version or mode eager");
}

bool is_shadow_access(const std::exception& error) {
  return std::string_view(error.what()).find("Cannot access data pointer of Storage that is invalid") !=
         std::string_view::npos;
}

c10::DataPtr take_memory(const at::Tensor& result, std::size_t ours) {
  c10::StorageImpl* storage = result.storage().unsafeGetStorageImpl();
  if (result.use_count() > ours || result.storage().use_count() > 1) return copy_memory(result.storage());
  return storage->set_data_ptr(c10::DataPtr(nullptr, storage->device()));
}

c10::DataPtr copy_memory(const c10::Storage& storage) {
  const at::NoGradGuard no_grad;
  const auto bytes = static_cast<int64_t>(storage.nbytes());
  const at::Tensor all =
      at::empty({0}, at::TensorOptions().dtype(at::kByte).device(storage.device())).set_(storage, 0, {bytes}, {1});
  const at::Tensor copy = all.clone();
  c10::StorageImpl* impl = copy.storage().unsafeGetStorageImpl();
  return impl->set_data_ptr(c10::DataPtr(nullptr, impl->device()));
}

}  // namespace duet
