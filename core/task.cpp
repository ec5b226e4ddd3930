#include "core/task.h"
#include <unordered_map>
#include <ATen/ops/ne.h>
#include <ATen/ops/sum.h>
#include <c10/core/ScalarType.h>
#include "base/detail/text.h"

namespace duet {

void Task::hold_in_evaluation(const std::vector<std::string>& modules) {
  if (modules.empty()) return;
  throw ConfigError("[Task] cannot keep " + join(modules) +
                    " in evaluation mode; override hold_in_evaluation(), or freeze single parameters");
}

NamedTensors Task::validation_step(const Batch& batch) {
  StepOutput output = training_step(batch);
  NamedTensors result = std::move(output.log);
  result.emplace_back("loss", output.loss);
  for (auto& item : output.outputs) result.push_back(std::move(item));
  return result;
}

NamedTensors Task::predict(const Batch& /*batch*/) {
  throw ConfigError("[Task] this task has no predict(); override it, or give make_task a prediction function");
}

namespace {

using FirstNames = std::unordered_map<const void*, std::string>;

// The first name of this tensor: `name` itself if there was none before. Undefined tensors are all one object and are
// not tied by that.
const std::string& first_name(FirstNames& names, const std::string& name, const at::Tensor& tensor) {
  return tensor.defined() ? names.try_emplace(tensor.unsafeGetTensorImpl(), name).first->second : name;
}

}  // namespace

NamedTensors deduplicated(NamedTensors items) {
  FirstNames names;
  std::erase_if(items, [&](const auto& item) { return first_name(names, item.first, item.second) != item.first; });
  return items;
}

std::map<std::string, std::string> aliases_of(const NamedTensors& parameters, const NamedTensors& buffers) {
  std::map<std::string, std::string> further;
  for (const NamedTensors* items : {&parameters, &buffers}) {
    FirstNames names;  // a list each, as in deduplicated()
    for (const auto& [name, tensor] : *items) {
      const std::string& own = first_name(names, name, tensor);
      if (own != name) further.emplace(name, own);
    }
  }
  return further;
}

int64_t counted_targets(const at::Tensor& target, int64_t ignore_index) {
  if (!c10::isIntegralType(target.scalar_type(), /*includeBool=*/false)) return target.numel();
  // The common case, in every step: without operators, which would cost more than the count.
  if (target.is_cpu() && target.is_contiguous() && target.scalar_type() == at::kLong) {
    const auto* const first = target.const_data_ptr<int64_t>();
    return target.numel() - std::count(first, first + target.numel(), ignore_index);
  }
  return target.ne(ignore_index).sum().item<int64_t>();
}

}  // namespace duet
