#include "core/detail/autograd_hooks.h"
#include <algorithm>
#include <torch/csrc/autograd/variable.h>

namespace duet {

int64_t autograd_hooks(const at::Tensor& tensor) {
  const auto* meta = static_cast<const torch::autograd::AutogradMeta*>(tensor.unsafeGetTensorImpl()->autograd_meta());
  if (meta == nullptr || meta->cpp_hooks_list_ == nullptr) return 0;
  return std::count_if(meta->cpp_hooks_list_->begin(), meta->cpp_hooks_list_->end(),
                       [](const auto& hook) { return static_cast<bool>(hook); });
}

}  // namespace duet
