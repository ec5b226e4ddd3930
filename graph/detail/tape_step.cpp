#include "graph/detail/tape_step.h"

#include "graph/record/op_recorder.h"
#include "graph/record/recording_points.h"

namespace duet {

bool TapeStep::capture(TrainStep& rule, const MicroBatches& micro_batches, StepObserver& points, bool strict, StepResult& output) {
  inputs_.fill(micro_batches);
  const NamedTensors state_before = rule.mutable_state();
  OpRecorder recorder(rule.parameters(), strict);
  recorder.watch_inputs(inputs_.micro_batches());
  RecordingPoints recording(points, recorder, moments_);
  recorder.watch([&] { output = rule.run(inputs_.micro_batches(), recording); });
  recorder.pause();
  const std::string replaced = replaced_tensor(state_before, rule.mutable_state());
  if (!replaced.empty()) recorder.fail(replaced);
  failure_ = recorder.failure();
  if (!failure_.empty()) {
    inputs_.copy_to(micro_batches);
    return false;
  }
  remember(points, recorder.tape());
  compile(recorder, rule, output);
  output = copy_of_output();  // the recorded results are what replays write into
  return true;
}

void TapeStep::compile(const OpRecorder& recorder, TrainStep& rule, const StepResult& output) {
  std::vector<at::Tensor> results;
  const auto keep = [&results](const at::Tensor& tensor) {
    if (tensor.defined()) results.push_back(tensor);
  };
  keep(output.loss);
  keep(output.grad_norm);
  for (const auto& item : output.log) keep(item.second);
  for (const auto& parameter : rule.parameters()) keep(parameter.second.grad());
  program_ = std::make_unique<StepProgram>(recorder.tape(), results, fuse_);

  const auto replayed = [&](const at::Tensor& tensor) { return tensor.defined() ? program_->tensor(tensor) : tensor; };
  output_.loss = replayed(output.loss);
  output_.grad_norm = replayed(output.grad_norm);
  for (const auto& [name, tensor] : output.log) output_.log.emplace_back(name, replayed(tensor));
  for (const auto& parameter : rule.parameters()) gradients_.push_back(replayed(parameter.second.grad()));
}

std::string TapeStep::text(const NamedTensors& names) const {
  if (!program_) return {};
  NamedTensors all = names;
  for (const Batch& batch : inputs_.micro_batches().batches) {
    for (const auto& item : batch.items()) all.push_back(item);
  }
  all.emplace_back("loss", output_.loss);
  return program_->text(all);
}

}  // namespace duet
