#include "graph/detail/gradient_handles.h"
#include <utility>
#include <ATen/core/grad_mode.h>
#include "base/detail/references.h"
#include "base/error.h"
#include "graph/guards/shadow_storage.h"

namespace duet {

namespace {

// Users may give a tensor other memory (set_data).
bool lies_over(const at::Tensor& handle, const at::Tensor& gradient) {
  return handle.storage().unsafeGetStorageImpl() == gradient.storage().unsafeGetStorageImpl() &&
         handle.storage_offset() == gradient.storage_offset() && handle.sizes() == gradient.sizes() &&
         handle.strides() == gradient.strides();
}

}  // namespace

bool same_layout(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  return a.scalar_type() == b.scalar_type() && a.layout() == b.layout() && a.sizes() == b.sizes() &&
         (a.layout() != at::kStrided || a.strides() == b.strides());
}

void GradientHandles::make(const std::vector<at::Tensor>& gradients, const ValueTable& table) {
  handles_.clear();
  for (const at::Tensor& gradient : gradients) {
    Handle handle;
    if (gradient.defined()) {
      handle.tensor = at::Tensor(
          gradient.unsafeGetTensorImpl()->shallow_copy_and_detach(c10::VariableVersion(0), /*allow_change=*/true));
      handle.is_of_program = table.find_storage(gradient) < 0;
    }
    handles_.push_back(std::move(handle));
  }
  for (Handle& handle : handles_) {
    if (handle.tensor.defined()) handle.references = handle.tensor.storage().use_count();
  }
}

// A gradient that somebody keeps stays what it is: it gets the memory, with a copy of the values, and the program's
// memory becomes that of another tensor.
void GradientHandles::leave_kept(const std::vector<at::Tensor>& gradients, const ValueTable& table,
                                 const MoveTensors& move_tensors) {
  bool any = false;
  for (std::size_t i = 0; i < handles_.size(); ++i) {
    const Handle& handle = handles_[i];
    if (!handle.tensor.defined()) continue;
    const bool moved = !lies_over(handle.tensor, gradients[i]);
    any = any || moved;
    const bool kept = references_to(handle.tensor) > 1 || handle.tensor.storage().use_count() > handle.references;
    if (moved || !kept || !handle.is_of_program) continue;
    any = true;
    c10::StorageImpl* users = handle.tensor.storage().unsafeGetStorageImpl();
    const c10::Storage own(c10::Storage::use_byte_size_t(), users->nbytes(), copy_memory(handle.tensor.storage()),
                           users->allocator(), /*resizable=*/false);
    // The addresses in the program stay: the two swap their memory.
    own.unsafeGetStorageImpl()->set_data_ptr_noswap(
        users->set_data_ptr(own.unsafeGetStorageImpl()->set_data_ptr(c10::DataPtr(nullptr, users->device()))));
    move_tensors(users, own);
    for (const at::Tensor& gradient : gradients) {
      if (gradient.defined() && gradient.storage().unsafeGetStorageImpl() == users) {
        gradient.unsafeGetTensorImpl()->set_storage_keep_dtype(own);
      }
    }
  }
  if (any) make(gradients, table);
}

void GradientHandles::hand_out(const NamedTensors& parameters) const {
  for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i].second.mutable_grad() = handles_[i].tensor;
}

// A hook may have put other gradients in place: their values are what the optimizer must see.
bool GradientHandles::take_back(const NamedTensors& parameters, const std::vector<at::Tensor>& gradients) const {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (!same_layout(parameters[i].second.grad(), gradients[i])) return false;
  }
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor gradient = parameters[i].second.grad();
    const at::Tensor& handle = handles_[i].tensor;
    const bool is_handle = gradient.is_same(handle);
    if (is_handle && (!handle.defined() || lies_over(handle, gradients[i]))) continue;
    gradients[i].copy_(gradient);
    if (is_handle) handle.set_data(gradients[i]);
  }
  return true;
}

}  // namespace duet
