#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>
#include "core/detail/step_executor.h"
#include "core/trainer.h"
#include "graph/detail/gradient_handles.h"
#include "graph/detail/static_inputs.h"
#include "graph/guards/read_guard.h"
#include "graph/guards/run_by_op.h"
#include "graph/guards/trace_check.h"
#include "graph/guards/written_memory.h"
#include "graph/record/step_program.h"

namespace duet {

class CpuProgram;
class ObstacleListener;

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

// Every tensor that a step gives: its results and the gradients.
std::vector<at::Tensor> results_of(const StepResult& output, const NamedTensors& parameters);

// The tensors that the code reads and changes, those from outside left out.
NamedTensors all_tensors_of(const StepCode& step);

// One step captured for one signature: static inputs, segments of kernels with split points between them, and the
// tensors that its results and gradients lie in. What a segment is differs: see CpuStep and CudaStep.
class CapturedStep {
 public:
  explicit CapturedStep(const MicroBatches& example) : inputs_(example) {}
  virtual ~CapturedStep() = default;

  // Runs one real step op by op and records it. If it cannot be replayed, failure() says why afterwards; with `strict`
  // that throws GraphError instead, before the step has changed anything.
  StepResult record(StepCode& step, const MicroBatches& micro_batches, StepObserver& observer, bool strict);
  // What earlier recordings of the step have found to be another tensor from step to step; before record().
  void set_changing(std::vector<StepProgram::Place> places) { changing_ = std::move(places); }
  // Has record() look for every obstacle. The listener is lent until then.
  void tell_all(ObstacleListener& listener) { listener_ = &listener; }
  // Whether it can be replayed; if not, the device is to capture it first.
  virtual bool is_ready() const { return true; }
  // Runs one step on `micro_batches`, which has the layout of the captured one.
  StepResult replay(StepCode& step, const MicroBatches& micro_batches, StepObserver& observer);

  // Runs the host code of one step and compares it with the recording (TraceCheck), then replays it. Where the two
  // differ the step runs op by op instead.
  struct Checked {
    TraceCheck::Outcome outcome;
    StepResult output;  // unless kUnreadable
    double replay_seconds = 0;
  };
  Checked check_and_replay(StepCode& step, const MicroBatches& micro_batches, StepObserver& observer);
  // Has the device capture one step, whose host code runs once and is compared with the recording, and replays that. If
  // the two differ the capture is forgotten afterwards. Nothing if the device refuses: failure() says why, and the host
  // code has run, but no op.
  std::optional<Checked> capture_and_replay(StepCode& step, const MicroBatches& micro_batches, StepObserver& observer);
  // Runs one step op by op. False if its host code does something else than recorded.
  bool run_followed(StepCode& step, const MicroBatches& micro_batches, StepObserver& observer, StepResult& output);
  // A replay of that step, on the tensors from outside that its host code has named as they were before it.
  StepResult replay_followed(StepCode& step, const MicroBatches& micro_batches, StepObserver& observer);
  // Then: what the two have made of these, if that is not the same.
  std::vector<std::string> differences_outside() const;
  // The host code of the step that ran last, once more and without a step.
  bool still_same(StepCode& step, StepObserver& observer);
  // Runs the recorded ops without host code (run_by_op.h), on micro-batches as in replay().
  OpHashes run_by_op(const MicroBatches& micro_batches);
  UnstableOps unstable_ops(const std::vector<OpHashes>& runs) const { return {recording_, runs}; }
  // Whether its host code was found to be the recorded one, at least once.
  bool was_checked() const { return was_checked_; }
  bool somebody_drew() const { return check_->somebody_drew(); }
  // What the last check found to differ.
  const std::string& difference() const { return check_->difference(); }
  const std::optional<StepProgram::Place>& changed_tensor() const { return check_->changed_tensor(); }
  // Whether somebody keeps tensors of the step, gives it others each time, or fills one by its address: then each
  // replay needs the host code.
  bool needs_host_code() const {
    return recording_->keeps_tensors() || recording_->reads_changing_tensors() || fills_by_address_ || keeps_batch_;
  }
  bool reads_changing_tensors() const { return recording_->reads_changing_tensors(); }
  // Whether ops of it draw random numbers.
  bool draws() const { return draws_; }
  // Whether somebody let go of a tensor from outside that the step reads, or gave it other memory: the user's code may
  // have another one now.
  bool lost_references();

  // Tells before a step whether the values that its host code reads are the recorded ones; null: it reads none. A
  // replay is right only where they are.
  ReadGuard* reads() { return reads_.get(); }

  const std::string& failure() const { return failure_; }
  // Of the step that ran last: the parameter whose gradient a hook has replaced or removed, so that it ended op by op.
  const std::string& replaced_gradient() const { return replaced_gradient_; }
  bool may_succeed_later() const { return may_succeed_later_; }
  // What the recorded step writes beside its own memory.
  const WrittenMemory::Ranges& written() const { return written_; }
  // What a step changes besides TrainStep's tensors: tensors of hooks and tasks, and generators of their own.
  const NamedTensors& outside() const { return outside_; }
  std::vector<at::Generator>& generators() { return generators_; }
  virtual int64_t bytes() const { return inputs_.bytes(); }
  virtual std::string text(const NamedTensors& names) const = 0;
  // The program that a replay runs on the CPU; null on another device.
  virtual CpuProgram* cpu_program() { return nullptr; }
  // How many there are before and after each pass.
  virtual StepExplanation::Ops ops() const = 0;

  // Whether the captured hooks are the present ones.
  bool fits(const StepObserver& observer) const {
    return splits_ == observer.splits() && version_ == observer.version();
  }

 protected:
  // Makes what a replay runs out of the recording. `recorded` and the parameters' gradients are those of the recorded
  // step.
  virtual void compile(const std::shared_ptr<const StepProgram>& recording, StepCode& step,
                       const StepResult& recorded) = 0;
  virtual void run_segment(std::size_t segment) = 0;
  // Captures one step on the static inputs by follow_host_code(). False if the device refuses.
  virtual bool capture(StepCode& /*step*/, StepObserver& /*observer*/) { return true; }
  virtual void forget_capture() {}
  // Runs the host code of one step on the static inputs, each op by `run_op`, and notes whether it is the recorded one.
  StepResult follow_host_code(StepCode& step, StepObserver& observer, const TraceCheck::RunOp& run_op);
  std::string place_of_host_code() const { return check_->place(); }
  // Whether values that host code reads may be computed before a replay, which waits for them.
  virtual bool guards_reads() const { return false; }
  // The memory of a storage of the recording that outlives a replay.
  virtual c10::Storage memory_of(int storage) const = 0;
  // What lies in `from` lies in `to` from here on.
  virtual void move_tensors(const c10::StorageImpl* /*from*/, const c10::Storage& /*to*/) {}
  std::size_t segments() const { return split_points_.size() + 1; }

  StaticInputs inputs_;
  StepResult output_;
  std::vector<at::Tensor> gradients_;  // by parameter; undefined where the step gives none
  std::string failure_;
  std::unique_ptr<ReadGuard> reads_;

 private:
  TraceCheck::HostCode host_code(StepCode& step, const MicroBatches& micro_batches, StepObserver& observer,
                                 StepResult& output);
  StepResult run_segments(StepCode& step, StepObserver& observer);
  void begin_replay();
  bool run_to_split(std::size_t split, StepCode& step, StepObserver& observer, bool checked);
  StepResult run_last(StepCode& step, bool checked);
  void run_checked_segment(std::size_t segment);
  StepResult finish_by_op(StepCode& step, SplitPoint passed, StepObserver& observer);
  void fill_kept(std::size_t segment);
  TraceCheck::Outcome check_host_code(StepCode& step, const MicroBatches& micro_batches, StepObserver& observer,
                                      StepResult& output);
  void watch_outside(const NamedTensors& known);
  void bring_bound_tensors();
  void take_bound_tensors();

  std::shared_ptr<const StepProgram> recording_;
  std::unique_ptr<TraceCheck> check_;
  struct Outside {
    at::Tensor tensor;
    const void* storage;
    std::size_t references = 0;
  };
  std::vector<Outside> watched_;  // tensors from outside, weights and state left out
  ObstacleListener* listener_ = nullptr;
  std::vector<StepProgram::Place> changing_;
  GradientHandles handles_;
  std::string replaced_gradient_;
  std::size_t next_segment_ = 0;          // while the host code is checked
  std::vector<SplitPoint> split_points_;  // after each segment but the last
  WrittenMemory::Ranges written_;
  NamedTensors outside_;
  std::vector<bool> written_outside_;  // by storage of the recording
  std::vector<at::Generator> generators_;
  bool draws_ = false;
  bool fills_by_address_ = false;
  bool keeps_batch_ = false;  // somebody keeps tensors of it that no op reads
  bool was_checked_ = false;
  bool captured_the_recording_ = true;
  bool may_succeed_later_ = false;
  bool splits_ = false;
  int64_t version_ = 0;
};

}  // namespace duet
