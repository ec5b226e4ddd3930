#include "cli/step_hashes.h"
#include <algorithm>
#include "base/detail/bits.h"
#include "core/task.h"

namespace duet {

void add_hashes(const Task& task, StepHashes& hashes) {
  for (const auto& [name, weight] : task.named_parameters()) {
    hashes.tensors.emplace_back("weight '" + name + "'", bits_hash(weight.detach()));
  }
  for (const auto& [name, buffer] : task.named_buffers()) {
    hashes.tensors.emplace_back("buffer '" + name + "'", bits_hash(buffer));
  }
}

void StepHashHook::after_train_iter(TrainContext& context) {
  if (static_cast<int64_t>(steps_.size()) >= limit_) return;
  StepHashes hashes{context.progress.step, {}};
  const auto add = [&hashes](const std::string& name, const at::Tensor& tensor) {
    if (tensor.defined()) hashes.tensors.emplace_back(name, bits_hash(tensor.detach()));
  };
  add("loss", context.step.loss());
  for (const auto& [name, value] : context.step.result->log) add("logged value '" + name + "'", value);
  const NamedTensors weights = context.task.named_parameters();
  for (auto weight = weights.rbegin(); weight != weights.rend(); ++weight) {
    add("gradient of '" + weight->first + "'", weight->second.grad());
  }
  add("gradient norm", context.step.result->grad_norm);
  add_hashes(context.task, hashes);
  steps_.push_back(std::move(hashes));
}

std::optional<HashDifference> first_difference(const std::vector<StepHashes>& a, const std::vector<StepHashes>& b) {
  const std::size_t both = std::min(a.size(), b.size());
  for (std::size_t i = 0; i < both; ++i) {
    HashDifference found{a[i].step, "", 0, static_cast<int64_t>(std::max(a[i].tensors.size(), b[i].tensors.size()))};
    for (std::size_t t = 0; t < static_cast<std::size_t>(found.compared); ++t) {
      const bool in_both = t < a[i].tensors.size() && t < b[i].tensors.size();
      if (in_both && a[i].tensors[t] == b[i].tensors[t]) continue;
      if (found.differing++ == 0) found.tensor = (t < a[i].tensors.size() ? a : b)[i].tensors[t].first;
    }
    if (found.differing > 0) return found;
  }
  if (a.size() == b.size()) return std::nullopt;
  const std::vector<StepHashes>& longer = a.size() > b.size() ? a : b;
  return HashDifference{longer[both].step, "the step itself, which one run does not have", 1, 1};
}

}  // namespace duet
