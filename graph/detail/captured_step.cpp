#include "graph/detail/captured_step.h"
#include <cstring>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>
#include "base/error.h"
#include "graph/record/op_recorder.h"

namespace duet {

StaticInputs::StaticInputs(const MicroBatches& example) : micro_batches_(example) {
  for (Batch& batch : micro_batches_.batches) {
    Batch own;
    for (const auto& [name, tensor] : batch.items()) {
      own.set(name, at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().requires_grad(false)));
    }
    batch = std::move(own);
  }
}

namespace {

// The memory that the tensor spans, gaps included: it may be expanded, and then it cannot be written as it is.
at::Tensor span_of(const at::Tensor& tensor) {
  int64_t elements = tensor.numel() == 0 ? 0 : 1;
  for (int64_t d = 0; d < tensor.dim() && elements > 0; ++d) elements += (tensor.size(d) - 1) * tensor.stride(d);
  return tensor.detach().as_strided({elements}, {1});
}

// Calls visit(own, other) for each tensor of the two, which have the same layout.
template <class Visit>
void for_each_pair(const MicroBatches& own, const MicroBatches& others, Visit visit) {
  const at::NoGradGuard no_grad;
  for (std::size_t b = 0; b < own.batches.size(); ++b) {
    const NamedTensors& left = own.batches[b].items();
    for (std::size_t i = 0; i < left.size(); ++i) visit(left[i].second, others.batches[b].items()[i].second);
  }
}

}  // namespace

void StaticInputs::copy_to(const MicroBatches& micro_batches) const {
  for_each_pair(micro_batches_, micro_batches, [](const at::Tensor& own, const at::Tensor& batch) {
    if (own.is_non_overlapping_and_dense()) batch.detach().copy_(own);
  });
}

void StaticInputs::fill(const MicroBatches& micro_batches) {
  for_each_pair(micro_batches_, micro_batches, [](const at::Tensor& target, const at::Tensor& source) {
    if (source.is_cpu() && source.is_contiguous()) {  // small batches: a dispatched copy costs more than the bytes
      std::memcpy(target.mutable_data_ptr(), source.const_data_ptr(), source.nbytes());
    } else {
      span_of(target).copy_(span_of(source), /*non_blocking=*/true);
    }
  });
}

int64_t StaticInputs::bytes() const {
  int64_t total = 0;
  for (const Batch& batch : micro_batches_.batches) {
    for (const auto& item : batch.items()) total += static_cast<int64_t>(item.second.nbytes());
  }
  return total;
}

namespace {

// Runs the hooks of a split point with the recorder paused, and marks the place.
class RecordingObserver : public StepObserver {
 public:
  RecordingObserver(StepObserver& inner, OpRecorder& recorder) : inner_(inner), recorder_(recorder) {}

  void after_backward(const StepView& view) override {
    split(SplitPoint::kAfterBackward, view, [&] { inner_.after_backward(view); });
  }
  void before_optimizer_step(const StepView& view) override {
    split(SplitPoint::kBeforeOptimizerStep, view, [&] { inner_.before_optimizer_step(view); });
  }
  void in_step(StepView& view) override { inner_.in_step(view); }

 private:
  template <class Call>
  void split(SplitPoint point, const StepView& view, Call call) {
    if (!inner_.splits()) return;
    std::vector<const void*> addresses;
    for (const auto& parameter : view.parameters) addresses.push_back(address(parameter.second.grad()));
    recorder_.add_split(point);
    recorder_.pause();
    call();
    recorder_.resume();
    for (std::size_t i = 0; i < addresses.size(); ++i) {
      if (address(view.parameters[i].second.grad()) == addresses[i]) continue;
      recorder_.fail("a hook put another tensor in the place of the gradient of '" + view.parameters[i].first +
                     "'; change the gradient in place (copy_, mul_, ...)");
    }
  }
  static const void* address(const at::Tensor& tensor) { return tensor.defined() ? tensor.const_data_ptr() : nullptr; }

  StepObserver& inner_;
  OpRecorder& recorder_;
};

// What a user keeps must not change with the next step.
StepResult copy_of(const StepResult& result) {
  const at::NoGradGuard no_grad;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return mapped(result, [](const at::Tensor& tensor) { return tensor.clone(); });
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
