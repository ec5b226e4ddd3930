#include "graph/detail/captured_step.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include "base/error.h"

namespace duet {

void CapturedStep::remember(const StepObserver& points, const Tape& tape) {
  for (const at::Tensor& tensor : tape.changed_outside()) {
    outside_.emplace_back("a tensor that is not part of the model", tensor);
  }
  generators_ = tape.generators();
  splits_ = points.splits();
  version_ = points.version();
}

StepResult CapturedStep::replay(TrainStep& rule, const MicroBatches& micro_batches, StepObserver& points) {
  inputs_.fill(micro_batches);
  for (std::size_t segment = 0; segment < moments_.size(); ++segment) {
    run_segment(segment);
    hand_out_gradients(rule);
    if (moments_[segment] == Moment::kAfterBackward) {
      const StepResult so_far{output_.loss, output_.log, {}};  // the norm is still that of the last step
      points.after_backward({rule.parameters(), so_far});
    } else {
      points.before_optimizer_step({rule.parameters(), output_});
    }
    take_back_gradients(rule);
  }
  run_segment(moments_.size());
  hand_out_gradients(rule);
  return copy_of_output();
}

StepResult CapturedStep::copy_of_output() const {
  const at::NoGradGuard no_grad;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const auto copy = [](const at::Tensor& tensor) { return tensor.defined() ? tensor.clone() : tensor; };
  StepResult output{copy(output_.loss), {}, copy(output_.grad_norm)};
  for (const auto& [name, tensor] : output_.log) output.log.emplace_back(name, copy(tensor));
  return output;
}

std::string replaced_tensor(const NamedTensors& before, const NamedTensors& after) {
  for (std::size_t i = 0; i < before.size() && i < after.size(); ++i) {
    const at::Tensor& a = before[i].second;
    const at::Tensor& b = after[i].second;
    if (a.has_storage() && b.has_storage() && a.storage().unsafeGetStorageImpl() != b.storage().unsafeGetStorageImpl()) {
      return "'" + after[i].first + "' is replaced by another tensor within the step; change it in place (copy_, lerp_)";
    }
  }
  return {};
}

void CapturedStep::hand_out_gradients(TrainStep& rule) {
  const NamedTensors& parameters = rule.parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i].second.mutable_grad() = gradients_[i];
}

// A hook may have put other gradients in place: their values are what the optimizer must see.
void CapturedStep::take_back_gradients(TrainStep& rule) {
  const at::NoGradGuard no_grad;
  const NamedTensors& parameters = rule.parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor gradient = parameters[i].second.grad();
    if (gradient.is_same(gradients_[i])) continue;
    const bool fits = gradient.defined() && gradients_[i].defined() && gradient.sizes() == gradients_[i].sizes() &&
                      gradient.scalar_type() == gradients_[i].scalar_type();
    if (!fits) {
      throw GraphError("[GraphTrainer] a hook removed the gradient of '" + parameters[i].first +
                       "' or gave it another shape or dtype, which the captured step does not know; change it in place, "
                       "or set graph.fallback to eager");
    }
    gradients_[i].copy_(gradient);
  }
}

}  // namespace duet
