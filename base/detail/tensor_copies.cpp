#include "base/detail/tensor_copies.h"
#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include "base/detail/bits.h"

namespace duet {

namespace {

int64_t bytes_in_block(const at::Tensor& tensor) {
  constexpr int64_t kAlignment = 64;
  const bool plain = tensor.is_cpu() && tensor.layout() == at::kStrided && !tensor.is_quantized();
  return plain ? (static_cast<int64_t>(tensor.nbytes()) + kAlignment - 1) / kAlignment * kAlignment : 0;
}

at::Tensor spare_copy(const at::Tensor& tensor) {
  try {
    return tensor.detach().clone();
  } catch (const c10::OutOfMemoryError&) {
    if (tensor.is_cpu()) throw;
    return tensor.detach().cpu();  // slow, but a model that just fits has a copy too
  }
}

}  // namespace

// Those of the host lie in one block, which goes back to the system whole.
NamedTensors copy_of(const NamedTensors& tensors) {
  const at::NoGradGuard no_grad;
  int64_t bytes = 0;
  for (const auto& item : tensors) bytes += bytes_in_block(item.second);
  const at::Tensor block = at::empty({bytes}, at::kByte);
  NamedTensors copies;
  int64_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    const int64_t size = bytes_in_block(tensor);
    at::Tensor copy = size > 0 ? at::empty({0}, tensor.options()) : spare_copy(tensor);
    if (size > 0) {
      copy.set_(block.storage(), offset / tensor.element_size(), tensor.sizes(), {});
      copy.copy_(tensor);
      offset += size;
    }
    copies.emplace_back(name, copy);
  }
  return copies;
}

// Tensor by tensor, so that one copy of the state is enough for a comparison.
void swap_values(const NamedTensors& saved, const NamedTensors& live) {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < saved.size(); ++i) {
    if (same_bits(saved[i].second, live[i].second)) continue;
    const at::Tensor now = spare_copy(live[i].second);
    live[i].second.detach().copy_(saved[i].second);
    saved[i].second.copy_(now);
  }
}

void restore(const NamedTensors& saved, const NamedTensors& live) {
  for (std::size_t i = 0; i < saved.size(); ++i) restore(saved[i].second, live[i].second);
}

void restore(const at::Tensor& saved, const at::Tensor& live) {
  const at::NoGradGuard no_grad;
  if (!same_bits(saved, live)) live.detach().copy_(saved);
}

}  // namespace duet
