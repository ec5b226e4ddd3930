#include "graph/detail/gradient_handles.h"
#include <utility>
#include "base/detail/references.h"
#include "graph/guards/shadow_storage.h"

namespace duet {

namespace {

// Users may give a tensor other memory (set_data).
bool lies_over(const at::Tensor& handle, const at::Tensor& gradient) {
  return handle.storage().unsafeGetStorageImpl() == gradient.storage().unsafeGetStorageImpl() &&
         handle.storage_offset() == gradient.storage_offset() && handle.sizes() == gradient.sizes() &&
         handle.strides() == gradient.strides();
}

at::Tensor over_memory_of(const at::Tensor& gradient) {
  return at::Tensor(
      gradient.unsafeGetTensorImpl()->shallow_copy_and_detach(c10::VariableVersion(0), /*allow_change=*/true));
}

}  // namespace

void GradientHandles::make(const std::vector<at::Tensor>& gradients, const ValueTable& table) {
  handles_.clear();
  for (const at::Tensor& gradient : gradients) {
    Handle handle;
    if (gradient.defined()) {
      handle.tensor = over_memory_of(gradient);
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

std::string GradientHandles::replaced(const NamedTensors& parameters, const std::vector<at::Tensor>& gradients) const {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& now = parameters[i].second.grad();
    const bool is_left_alone =
        now.is_same(handles_[i].tensor) && (!gradients[i].defined() || lies_over(now, gradients[i]));
    if (!is_left_alone) return parameters[i].first;
  }
  return {};
}

}  // namespace duet
