#include <duet/core/message_hub.h>

#include <ATen/ops/scalar_tensor.h>
#include <c10/util/StringUtil.h>
#include <duet/core/error.h>

namespace duet {

void MessageHub::scalar(const std::string& name, at::Tensor value) {
  if (!value.defined() || value.numel() != 1) {
    throw ConfigError(c10::str("[MessageHub] found ", value.defined() ? c10::str("a tensor ", value.sizes()) : "nothing",
                               " for '", name, "', expected one number; reduce it to its mean"));
  }
  for (auto& entry : scalars_) {
    if (entry.first != name) continue;
    entry.second = std::move(value);
    return;
  }
  scalars_.emplace_back(name, std::move(value));
}

void MessageHub::scalar(const std::string& name, double value) {
  scalar(name, at::scalar_tensor(value, at::kDouble));
}

}  // namespace duet
