#include "graph/replay/cpu_step.h"
#include "graph/replay/cpu_program_builder.h"

namespace duet {

void CpuStep::compile(const StepProgram& recording, TrainStep& step, const StepResult& recorded) {
  std::vector<at::Tensor> results;
  const auto add = [&results](const at::Tensor& tensor) {
    if (tensor.defined()) results.push_back(tensor);
  };
  add(recorded.loss);
  add(recorded.grad_norm);
  for (const auto& item : recorded.log) add(item.second);
  for (const auto& parameter : step.parameters()) add(parameter.second.grad());
  program_ = std::make_unique<CpuProgram>(CpuProgramBuilder(recording, results).build(fuse_));

  const auto replayed = [&](const at::Tensor& tensor) { return tensor.defined() ? program_->tensor(tensor) : tensor; };
  output_.loss = replayed(recorded.loss);
  output_.grad_norm = replayed(recorded.grad_norm);
  for (const auto& [name, tensor] : recorded.log) output_.log.emplace_back(name, replayed(tensor));
  for (const auto& parameter : step.parameters()) gradients_.push_back(replayed(parameter.second.grad()));
}

std::string CpuStep::text(const NamedTensors& names) const {
  if (!program_) return {};
  NamedTensors all = names;
  for (const Batch& batch : inputs_.micro_batches().batches) {
    for (const auto& item : batch.items()) all.push_back(item);
  }
  all.emplace_back("loss", output_.loss);
  return program_->text(all);
}

}  // namespace duet
