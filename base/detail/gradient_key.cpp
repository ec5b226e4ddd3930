#include "base/detail/gradient_key.h"
#include <torch/csrc/autograd/variable.h>

namespace duet {

int64_t gradient_key(const at::Tensor& leaf) {
  const auto* meta = static_cast<const torch::autograd::AutogradMeta*>(leaf.unsafeGetTensorImpl()->autograd_meta());
  if (meta == nullptr) return 0;
  const bool of_python = meta->cpp_hooks_list_ == nullptr && !meta->hooks_.empty();
  uint64_t key = (leaf.requires_grad() ? 1 : 0) + (of_python ? 2 : 0);
  if (meta->cpp_hooks_list_ == nullptr) return static_cast<int64_t>(key);
  uint64_t place = 0;  // remove_hook() leaves an empty one
  for (const auto& hook : *meta->cpp_hooks_list_) {
    ++place;
    if (hook) key = key * 31 + 4 * place;
  }
  return static_cast<int64_t>(key);
}

}  // namespace duet
