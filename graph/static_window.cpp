#include <duet/graph/static_window.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>

#include <cstring>

namespace duet {

StaticWindow::StaticWindow(const Window& example) : window_(example) {
  for (Batch& batch : window_.batches) {
    Batch own;
    for (const auto& [name, tensor] : batch.items()) {
      own.set(name, at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().requires_grad(false)));
    }
    batch = std::move(own);
  }
}

void StaticWindow::fill(const Window& window) {
  const at::NoGradGuard no_grad;
  for (std::size_t b = 0; b < window.batches.size(); ++b) {
    const NamedTensors& from = window.batches[b].items();
    const NamedTensors& to = window_.batches[b].items();
    for (std::size_t i = 0; i < from.size(); ++i) {
      const at::Tensor& source = from[i].second;
      const at::Tensor& target = to[i].second;
      if (source.is_cpu() && source.is_contiguous()) {  // small batches: a dispatched copy costs more than the bytes
        std::memcpy(target.mutable_data_ptr(), source.const_data_ptr(), source.nbytes());
      } else {
        target.copy_(source, /*non_blocking=*/true);
      }
    }
  }
}

int64_t StaticWindow::bytes() const {
  int64_t total = 0;
  for (const Batch& batch : window_.batches) {
    for (const auto& item : batch.items()) total += static_cast<int64_t>(item.second.nbytes());
  }
  return total;
}

}  // namespace duet
