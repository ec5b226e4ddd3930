#include <cstring>
#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include "graph/detail/captured_step.h"

// How CapturedStep runs its segments, with the hooks between them.

namespace duet {

namespace {

// A dispatched clone costs more than the bytes of a small result.
at::Tensor copy_of(const at::Tensor& tensor) {
  const bool plain = tensor.is_cpu() && tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
  if (!plain) return tensor.clone();
  at::Tensor copy(at::detail::empty_cpu(tensor.sizes(), tensor.scalar_type()));
  std::memcpy(copy.mutable_data_ptr(), tensor.const_data_ptr(), tensor.nbytes());
  return copy;
}

// What a user keeps must not change with the next step.
StepResult copy_of(const StepResult& result) {
  const at::NoGradGuard no_grad;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return mapped(result, [](const at::Tensor& tensor) { return copy_of(tensor); });
}

}  // namespace

StepResult CapturedStep::run_segments(StepCode& step, StepObserver& observer) {
  begin_replay();
  for (std::size_t split = 0; split < split_points_.size(); ++split) {
    if (run_to_split(split, step, observer, /*checked=*/false)) continue;
    return finish_by_op(step, split_points_[split], observer);
  }
  return run_last(step, /*checked=*/false);
}

void CapturedStep::begin_replay() {
  replaced_gradient_.clear();
  if (handles_.empty()) handles_.make(gradients_, recording_->table);
  handles_.leave_kept(gradients_, recording_->table,
                      [this](const auto* from, const auto& to) { move_tensors(from, to); });
}

// A segment and the hooks after it. False if they have put gradients in place that the captured step does not know.
bool CapturedStep::run_to_split(std::size_t split, StepCode& step, StepObserver& observer, bool checked) {
  checked ? run_checked_segment(split) : run_segment(split);
  handles_.hand_out(step.parameters());
  if (split_points_[split] == SplitPoint::kAfterBackward) {
    const StepResult so_far{output_.loss, output_.log, {}, output_.outputs};  // the norm is still of the last step
    observer.after_backward({step.parameters(), so_far});
  } else {
    observer.before_optimizer_step({step.parameters(), output_});
  }
  if (checked) check_->bring_kept([this](int storage) { return memory_of(storage); });
  replaced_gradient_ = handles_.replaced(step.parameters(), gradients_);
  return replaced_gradient_.empty();
}

StepResult CapturedStep::run_last(StepCode& step, bool checked) {
  checked ? run_checked_segment(split_points_.size()) : run_segment(split_points_.size());
  handles_.hand_out(step.parameters());
  return copy_of(output_);
}

// On the tensors from outside that the host code has named, and for the tensors that it has kept, both before hooks
// look at them.
void CapturedStep::run_checked_segment(std::size_t segment) {
  const OpSettingsGuard as_recorded(recording_->settings);  // host code may have changed one after the last op
  bring_bound_tensors();
  run_segment(segment);
  take_bound_tensors();
  fill_kept(segment);
}

StepResult CapturedStep::finish_by_op(StepCode& step, SplitPoint passed, StepObserver& observer) {
  StepResult output = copy_of(output_);
  if (passed == SplitPoint::kAfterBackward) output.grad_norm.reset();  // of the last step
  step.run_rest(passed, output, observer);
  return output;
}

void CapturedStep::fill_kept(std::size_t segment) {
  const std::size_t end = segment < split_points_.size() ? recording_->splits[segment].op : recording_->ops.size();
  check_->fill_kept(end, [this](int storage) { return memory_of(storage); });
}

void CapturedStep::bring_bound_tensors() {
  const at::NoGradGuard no_grad;
  for (const StepMemory::Bound& bound : check_->bound()) {
    bytes_of(memory_of(bound.storage)).copy_(bytes_of(bound.before ? bound.before : bound.memory));
  }
}

void CapturedStep::take_bound_tensors() {
  const at::NoGradGuard no_grad;
  for (const StepMemory::Bound& bound : check_->bound()) {
    if (!written_outside_[bound.storage]) continue;  // it may be memory that cannot be written
    bytes_of(bound.memory).copy_(bytes_of(memory_of(bound.storage)));
  }
}

}  // namespace duet
