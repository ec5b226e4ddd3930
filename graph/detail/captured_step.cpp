#include "graph/detail/captured_step.h"
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include "base/error.h"
#include "graph/record/recording_observer.h"

namespace duet {

namespace {

// What a user keeps must not change with the next step.
StepResult copy_of(const StepResult& result) {
  const at::NoGradGuard no_grad;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const auto copy = [](const at::Tensor& tensor) { return tensor.defined() ? tensor.clone() : tensor; };
  StepResult copied{copy(result.loss), {}, copy(result.grad_norm)};
  for (const auto& [name, tensor] : result.log) copied.log.emplace_back(name, copy(tensor));
  return copied;
}

// Why a step may not be replayed that gave one of TrainStep's tensors other memory; empty if none did.
std::string replaced_tensor(const NamedTensors& before, const NamedTensors& after) {
  for (std::size_t i = 0; i < before.size() && i < after.size(); ++i) {
    const at::Tensor& a = before[i].second;
    const at::Tensor& b = after[i].second;
    if (a.has_storage() && b.has_storage() &&
        a.storage().unsafeGetStorageImpl() != b.storage().unsafeGetStorageImpl()) {
      return "'" + after[i].first +
             "' is replaced by another tensor within the step; change it in place (copy_, lerp_)";
    }
  }
  return {};
}

}  // namespace

StepResult CapturedStep::record(TrainStep& step, const MicroBatches& micro_batches, StepObserver& observer,
                                bool strict) {
  inputs_.fill(micro_batches);
  const NamedTensors state_before = step.mutable_state();
  OpRecorder recorder(step.parameters(), strict);
  recorder.watch_inputs(inputs_.micro_batches());
  RecordingObserver recording(observer, recorder);
  StepResult output;
  recorder.record([&] { output = step.run(inputs_.micro_batches(), recording); });
  recorder.pause();
  const std::string replaced = replaced_tensor(state_before, step.mutable_state());
  if (!replaced.empty()) recorder.fail(replaced);
  failure_ = recorder.failure();
  if (!failure_.empty()) {
    inputs_.copy_to(micro_batches);
    return output;
  }
  const StepProgram& program = recorder.program();
  for (const at::Tensor& tensor : program.changed_outside()) {
    outside_.emplace_back("a tensor that is not part of the model", tensor);
  }
  generators_ = program.generators();
  for (const StepProgram::Split& split : program.splits) split_points_.push_back(split.point);
  splits_ = observer.splits();
  version_ = observer.version();
  compile(program, step, output);
  return copy_of(output);  // replays may write into the recorded results
}

StepResult CapturedStep::replay(TrainStep& step, const MicroBatches& micro_batches, StepObserver& observer) {
  inputs_.fill(micro_batches);
  for (std::size_t segment = 0; segment < split_points_.size(); ++segment) {
    run_segment(segment);
    hand_out_gradients(step);
    if (split_points_[segment] == SplitPoint::kAfterBackward) {
      const StepResult so_far{output_.loss, output_.log, {}};  // the norm is still that of the last step
      observer.after_backward({step.parameters(), so_far});
    } else {
      observer.before_optimizer_step({step.parameters(), output_});
    }
    take_back_gradients(step);
  }
  run_segment(split_points_.size());
  hand_out_gradients(step);
  return copy_of(output_);
}

void CapturedStep::hand_out_gradients(TrainStep& step) {
  const NamedTensors& parameters = step.parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i].second.mutable_grad() = gradients_[i];
}

// A hook may have put other gradients in place: their values are what the optimizer must see.
void CapturedStep::take_back_gradients(TrainStep& step) {
  const at::NoGradGuard no_grad;
  const NamedTensors& parameters = step.parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor gradient = parameters[i].second.grad();
    if (gradient.is_same(gradients_[i])) continue;
    const bool fits = gradient.defined() && gradients_[i].defined() && gradient.sizes() == gradients_[i].sizes() &&
                      gradient.scalar_type() == gradients_[i].scalar_type();
    if (!fits) {
      throw GraphError(
          "[GraphTrainer] a hook removed the gradient of '" + parameters[i].first +
          "' or gave it another shape or dtype, which the captured step does not know; change it in place, "
          "or set graph.fallback to eager");
    }
    gradients_[i].copy_(gradient);
  }
}

}  // namespace duet
