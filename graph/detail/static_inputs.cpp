#include "graph/detail/static_inputs.h"
#include <cstring>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>

namespace duet {

StaticInputs::StaticInputs(const MicroBatches& example) : micro_batches_(example) {
  for (Batch& batch : micro_batches_.batches) {
    Batch own;
    for (const auto& [name, tensor] : batch.items()) {
      own.set(name, at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().requires_grad(false)));
    }
    batch = std::move(own);
  }
}

namespace {

// The memory that the tensor spans, gaps included: it may be expanded, and then it cannot be written as it is.
at::Tensor span_of(const at::Tensor& tensor) {
  int64_t elements = tensor.numel() == 0 ? 0 : 1;
  for (int64_t d = 0; d < tensor.dim() && elements > 0; ++d) elements += (tensor.size(d) - 1) * tensor.stride(d);
  return tensor.detach().as_strided({elements}, {1});
}

}  // namespace

void StaticInputs::copy_to(const MicroBatches& micro_batches) const {
  const at::NoGradGuard no_grad;
  for (std::size_t b = 0; b < micro_batches.batches.size(); ++b) {
    const NamedTensors& from = micro_batches_.batches[b].items();
    const NamedTensors& to = micro_batches.batches[b].items();
    for (std::size_t i = 0; i < from.size(); ++i) {
      if (from[i].second.is_non_overlapping_and_dense()) to[i].second.detach().copy_(from[i].second);
    }
  }
}

void StaticInputs::fill(const MicroBatches& micro_batches) {
  const at::NoGradGuard no_grad;
  for (std::size_t b = 0; b < micro_batches.batches.size(); ++b) {
    const NamedTensors& from = micro_batches.batches[b].items();
    const NamedTensors& to = micro_batches_.batches[b].items();
    for (std::size_t i = 0; i < from.size(); ++i) {
      const at::Tensor& source = from[i].second;
      const at::Tensor& target = to[i].second;
      if (source.is_cpu() && source.is_contiguous()) {  // small batches: a dispatched copy costs more than the bytes
        std::memcpy(target.mutable_data_ptr(), source.const_data_ptr(), source.nbytes());
      } else {
        span_of(target).copy_(span_of(source), /*non_blocking=*/true);
      }
    }
  }
}

int64_t StaticInputs::bytes() const {
  int64_t total = 0;
  for (const Batch& batch : micro_batches_.batches) {
    for (const auto& item : batch.items()) total += static_cast<int64_t>(item.second.nbytes());
  }
  return total;
}

}  // namespace duet
