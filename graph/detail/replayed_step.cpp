#include "graph/detail/replayed_step.h"
#include <cstring>
#include <utility>
#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include "base/detail/references.h"
#include "base/detail/tensor_handle.h"
#include "graph/guards/shadow_storage.h"
#include "graph/record/step_results.h"

namespace duet {

namespace {

bool is_plain_memory(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

// A dispatched clone costs more than the bytes of a small result.
at::Tensor empty_as(const at::Tensor& tensor) { return at::detail::empty_cpu(tensor.sizes(), tensor.scalar_type()); }

at::Tensor filled(at::Tensor copy, const at::Tensor& tensor) {
  std::memcpy(copy.mutable_data_ptr(), tensor.const_data_ptr(), tensor.nbytes());
  return copy;
}

}  // namespace

void GradientHandles::make(const std::vector<at::Tensor>& gradients, const ValueTable& table) {
  handles_.clear();
  for (const at::Tensor& gradient : gradients) {
    Handle handle;
    if (gradient.defined()) {
      handle.tensor = handle_of(gradient);
      handle.is_of_program = table.find_storage(gradient) < 0;
    }
    handles_.push_back(std::move(handle));
  }
  for (Handle& handle : handles_) {
    if (handle.tensor.defined()) handle.references = handle.tensor.storage().use_count();
  }
}

// A gradient that somebody keeps stays what it is, and the program's memory becomes that of another tensor.
void GradientHandles::leave_kept(const std::vector<at::Tensor>& gradients, const ValueTable& table,
                                 const MoveTensors& move_tensors) {
  bool any = false;
  for (std::size_t i = 0; i < handles_.size(); ++i) {
    const Handle& handle = handles_[i];
    if (!handle.tensor.defined()) continue;
    const bool moved = !lies_over(handle.tensor, gradients[i]);
    any = any || moved;
    const bool kept = references_to(handle.tensor) > 1 || handle.tensor.storage().use_count() > handle.references;
    if (moved || !kept || !handle.is_of_program) continue;
    any = true;
    c10::StorageImpl* users = handle.tensor.storage().unsafeGetStorageImpl();
    const c10::Storage own(c10::Storage::use_byte_size_t(), users->nbytes(), copy_memory(handle.tensor.storage()),
                           users->allocator(), /*resizable=*/false);
    // The addresses in a device graph stay: the two swap their memory. On the CPU the user may have the address
    // (NumPy).
    if (!users->device().is_cpu()) {
      own.unsafeGetStorageImpl()->set_data_ptr_noswap(
          users->set_data_ptr(own.unsafeGetStorageImpl()->set_data_ptr(c10::DataPtr(nullptr, users->device()))));
    }
    move_tensors(users, own);
    for (const at::Tensor& gradient : gradients) {
      if (gradient.defined() && gradient.storage().unsafeGetStorageImpl() == users) {
        gradient.unsafeGetTensorImpl()->set_storage_keep_dtype(own);
      }
    }
  }
  if (any) make(gradients, table);
}

void GradientHandles::hand_out(const NamedTensors& parameters) const {
  for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i].second.mutable_grad() = handles_[i].tensor;
}

std::string GradientHandles::replaced(const NamedTensors& parameters, const std::vector<at::Tensor>& gradients) const {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& now = parameters[i].second.grad();
    const bool is_left_alone =
        now.is_same(handles_[i].tensor) && (!gradients[i].defined() || lies_over(now, gradients[i]));
    if (!is_left_alone) return parameters[i].first;
  }
  return {};
}

// Whether nobody else has it any more, and it is what was handed out. Python would find its old object again.
bool ReplayedStep::Copy::is_free_for(const at::Tensor& other) const {
  return tensor.defined() && tensor.use_count() == 1 && memory.use_count() == 2 &&
         tensor.unsafeGetTensorImpl()->pyobj_slot()->load_pyobj() == nullptr &&
         tensor.storage().unsafeGetStorageImpl() == memory.unsafeGetStorageImpl() &&
         tensor.unsafeGetTensorImpl()->autograd_meta() == nullptr && tensor.scalar_type() == other.scalar_type() &&
         tensor.sizes() == other.sizes() && tensor.is_contiguous() && memory.nbytes() == other.nbytes();
}

// What a user keeps must not change with the next step. A number that nobody keeps is written over by the step after
// the next one: to allocate a tensor for each would take as long as a small kernel.
StepResult ReplayedStep::copied_output() {
  const at::NoGradGuard no_grad;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  std::size_t number = 0;
  return mapped(tensors_.output, [&](const at::Tensor& tensor) {
    if (number == copies_.size()) copies_.emplace_back();
    std::array<Copy, 2>& copies = copies_[number++];
    if (!is_plain_memory(tensor)) return tensor.clone();
    if (tensor.numel() != 1) return filled(empty_as(tensor), tensor);
    std::swap(copies[0], copies[1]);
    if (!copies[0].is_free_for(tensor)) {
      copies[0].tensor = empty_as(tensor);
      copies[0].memory = copies[0].tensor.storage();
    }
    return filled(copies[0].tensor, tensor);
  });
}

// What hooks have seen is what the step gives; only the norm comes after them.
const StepResult& ReplayedStep::results() {
  if (!results_) {
    results_ = copied_output();
  } else if (tensors_.output.grad_norm.defined()) {
    results_->grad_norm = tensors_.output.grad_norm.clone();
  }
  return *results_;
}

std::string ReplayedStep::text(const NamedTensors& names) const {
  NamedTensors all = names;
  for (const Batch& batch : inputs_.micro_batches().batches) {
    for (const auto& item : batch.items()) all.push_back(item);
  }
  for (auto& item : tensors_.output.all()) all.push_back(std::move(item));
  return segments_->text(all);
}

void ReplayedStep::compile(const std::shared_ptr<const StepProgram>& recording, const StepResult& recorded,
                           const NamedTensors& parameters) {
  recording_ = recording;
  tensors_ = segments_->compile(recording, recorded, parameters);
  versions_.clear();
  std::vector<uint32_t> left;  // by storage
  for (const ValueTable::Storage& storage : recording->table.storages()) left.push_back(storage.version);
  for (const ValueTable::Value& value : recording->table.values()) {
    if (!value.original.defined() || value.original.is_inference()) continue;
    for (uint32_t& times = left[value.storage]; times > 0; --times)
      versions_.push_back(value.original.unsafeGetTensorImpl()->version_counter());
  }
}

bool ReplayedStep::capture(const CaptureRun& run) {
  handles_.clear();
  tensors_ = {};
  std::optional<ReplayTensors> captured = segments_->capture(run);
  if (captured) tensors_ = std::move(*captured);
  return captured.has_value();
}

void ReplayedStep::forget_capture() {
  tensors_.output = {};  // memory of the pool
  segments_->forget_capture();
}

StepResult ReplayedStep::run(StepCode& code, StepObserver& observer) {
  const RunSegment run_segment = [this](std::size_t segment) { segments_->run(segment); };
  begin();
  for (std::size_t split = 0; split < recording_->splits.size(); ++split) {
    if (!run_to_split(split, code, observer, run_segment)) return finish_by_op(split, code, observer);
  }
  return run_last(code, run_segment);
}

void ReplayedStep::begin() {
  replaced_gradient_.clear();
  results_.reset();
  if (handles_.empty()) handles_.make(tensors_.gradients, recording_->table);
  handles_.leave_kept(tensors_.gradients, recording_->table,
                      [this](const auto* from, const auto& to) { segments_->move_tensors(from, to); });
}

bool ReplayedStep::run_to_split(std::size_t split, StepCode& code, StepObserver& observer,
                                const RunSegment& run_segment) {
  run_segment(split);
  handles_.hand_out(code.parameters());
  const StepResult& output = results();
  if (recording_->splits[split].point == SplitPoint::kAfterBackward) {
    const StepResult so_far{output.loss, output.log, {}, output.outputs};  // the norm is still of the last step
    observer.after_backward({code.parameters(), so_far});
  } else {
    observer.before_optimizer_step({code.parameters(), output});
  }
  replaced_gradient_ = handles_.replaced(code.parameters(), tensors_.gradients);
  return replaced_gradient_.empty();
}

StepResult ReplayedStep::run_last(StepCode& code, const RunSegment& run_segment) {
  run_segment(recording_->splits.size());
  for (c10::VariableVersion& version : versions_) version.bump();
  handles_.hand_out(code.parameters());
  results();
  return *std::exchange(results_, std::nullopt);
}

StepResult ReplayedStep::finish_by_op(std::size_t split, StepCode& code, StepObserver& observer) {
  const SplitPoint passed = recording_->splits[split].point;
  StepResult output = results();
  results_.reset();
  if (passed == SplitPoint::kAfterBackward) output.grad_norm.reset();  // of the last step
  code.run_rest(passed, output, observer);
  return output;
}

}  // namespace duet
