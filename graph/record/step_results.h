#pragma once

#include <algorithm>
#include <unordered_map>
#include <utility>
#include <vector>
#include "base/detail/references.h"
#include "core/train_context.h"

namespace duet {

// `result` with map(tensor) in the place of each tensor that it has.
template <class Map>
StepResult mapped(const StepResult& result, Map map) {
  const auto of = [&map](const at::Tensor& tensor) { return tensor.defined() ? map(tensor) : tensor; };
  StepResult made{of(result.loss), {}, of(result.grad_norm)};
  for (const auto& [name, tensor] : result.log) made.log.emplace_back(name, of(tensor));
  for (const NamedTensors& outputs : result.outputs) {
    NamedTensors& mapped_outputs = made.outputs.emplace_back();
    for (const auto& [name, tensor] : outputs) mapped_outputs.emplace_back(name, of(tensor));
  }
  return made;
}

// Every tensor that a step gives: its results and the gradients of its parameters.
inline std::vector<at::Tensor> results_of(const StepResult& output, const NamedTensors& parameters) {
  std::vector<at::Tensor> results;
  for (const auto& item : output.all()) results.push_back(item.second);
  for (const auto& parameter : parameters) {
    if (parameter.second.grad().defined()) results.push_back(parameter.second.grad());
  }
  return results;
}

// Who refers to what a step gives: the trainer, to the results, or somebody else as well.
class ResultReferences {
 public:
  // Each of `results` is held once by the trainer (as a result, or as a parameter's gradient), once in this list and
  // once here.
  explicit ResultReferences(const std::vector<at::Tensor>& results) {
    for (const at::Tensor& result : results) {
      if (!result.defined() || !result.has_storage()) continue;
      Entry& entry = entries_[result.storage().unsafeGetStorageImpl()];
      entry.expected[result.unsafeGetTensorImpl()] += 3;
      entry.results.push_back(result);
    }
  }

  // Whether nobody but the trainer refers to it, through whichever tensor; `ours`: further references to the storage.
  bool only_results(const c10::StorageImpl* storage, std::size_t ours = 0) const {
    const auto found = entries_.find(storage);
    if (found == entries_.end()) return false;
    const Entry& entry = found->second;
    if (entry.results.front().storage().use_count() > entry.expected.size() + ours) return false;
    return std::ranges::all_of(entry.expected, [](const auto& of) { return references_to(of.first) <= of.second; });
  }

 private:
  struct Entry {
    std::vector<at::Tensor> results;
    std::unordered_map<const c10::TensorImpl*, std::size_t> expected;
  };

  std::unordered_map<const c10::StorageImpl*, Entry> entries_;
};

}  // namespace duet
