#include "core/detail/norm_buffers.h"
#include <utility>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/where.h>
#include "core/task.h"

namespace duet {

NormBuffers::NormBuffers(const Task& task) {
  const NamedTensors buffers = task.named_buffers();
  for (const ModuleInfo& module : task.modules()) {
    if (module.kind != ModuleKind::kNorm) continue;
    for (const auto& [name, buffer] : buffers) {
      if (name.substr(0, name.rfind('.')) == module.path) buffers_.push_back(buffer.detach());
    }
  }
}

void NormBuffers::keep() {
  const at::NoGradGuard no_grad;
  before_.clear();
  for (const at::Tensor& buffer : buffers_) before_.push_back(buffer.clone());
}

void NormBuffers::put_back_unless_finite(const at::Tensor& loss) {
  const std::vector<at::Tensor> before = std::exchange(before_, {});
  if (before.empty() || !loss.defined()) return;
  const at::NoGradGuard no_grad;
  const at::Tensor is_good = at::isfinite(loss);
  for (std::size_t i = 0; i < buffers_.size(); ++i) buffers_[i].copy_(at::where(is_good, buffers_[i], before[i]));
}

}  // namespace duet
