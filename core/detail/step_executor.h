#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>
#include <c10/core/Device.h>
#include "base/batch.h"
#include "base/error.h"
#include "core/train_context.h"

namespace duet {

struct StepExplanation;
class TrainStep;

// Where host code may run inside a step.
enum class SplitPoint { kAfterBackward, kBeforeOptimizerStep };

// Who acts inside a step, and where. At the two split points ordinary host code runs between kernels; in_step adds
// tensor code that is captured with the step.
class StepObserver {
 public:
  virtual ~StepObserver() = default;
  // Whether anybody acts at a split point: a captured step is then cut there.
  virtual bool splits() const { return false; }
  // Changes when the set of those who act inside steps changes.
  virtual int64_t version() const { return 0; }
  // Whether anybody looks at the model's outputs: the step then gives copies of them.
  virtual bool wants_outputs() const { return false; }
  // Steps of the run that are done.
  virtual int64_t steps_done() const { return 0; }
  // Whether checks that can wait shall wait (RunControl::postpones_checks).
  virtual bool postpones_checks() const { return false; }
  virtual void after_backward(const StepView&) {}
  virtual void before_optimizer_step(const StepView&) {}
  virtual void in_step(StepView&) {}
};

// Hands on to another observer; a subclass says what happens at a split point instead of, or around, its hooks.
class ForwardingObserver : public StepObserver {
 public:
  explicit ForwardingObserver(StepObserver& inner) : inner_(inner) {}
  bool splits() const override { return inner_.splits(); }
  int64_t version() const override { return inner_.version(); }
  bool wants_outputs() const override { return inner_.wants_outputs(); }
  int64_t steps_done() const override { return inner_.steps_done(); }
  bool postpones_checks() const override { return inner_.postpones_checks(); }
  void after_backward(const StepView& view) final {
    at_split(SplitPoint::kAfterBackward, view, [this, &view] { inner_.after_backward(view); });
  }
  void before_optimizer_step(const StepView& view) final {
    at_split(SplitPoint::kBeforeOptimizerStep, view, [this, &view] { inner_.before_optimizer_step(view); });
  }
  void in_step(StepView& view) override { inner_.in_step(view); }

 protected:
  // `hooks` calls those of the other observer; it lives as long as the call.
  virtual void at_split(SplitPoint point, const StepView& view, const std::function<void()>& hooks) = 0;

 private:
  StepObserver& inner_;
};

// What a StepCode is.
enum class CodeKind { kStep, kValidation, kPrediction };

const char* to_string(CodeKind kind);

// Tensor code over micro-batches: the step of training (TrainStep), the forward pass of an evaluation (ForwardPass).
// run() reads nothing back to the host and holds no host number that may change but those in its key: eager mode calls
// it, graph mode records it.
class StepCode {
 public:
  virtual ~StepCode() = default;
  virtual StepResult run(const MicroBatches& micro_batches, StepObserver& observer) = 0;
  virtual CodeKind kind() const = 0;
  // What run() does after the hooks at `passed`, with the gradients that they have left; `output` is the step's so far.
  virtual void run_rest(SplitPoint /*passed*/, StepResult& /*output*/, StepObserver& /*observer*/) {}

  // Appends every host number that a captured run() would freeze; it is captured once per key.
  virtual void append_key(std::vector<int64_t>& key) const = 0;
  // Part of the key: what was captured under a smaller one never comes back.
  virtual int64_t plan_version() const { return 0; }
  // Why run() cannot be captured at all, in words for the user; empty: it can.
  virtual std::string why_not_captured() const { return {}; }

  // The micro-batch that its host code is at, for errors.
  virtual std::size_t micro_batch() const { return 0; }

  // The ranks that run it together.
  virtual Communicator& communicator() const = 0;

  // The parameters that it makes gradients of, and how to let go of these, so that backward makes new ones.
  virtual const NamedTensors& parameters() const = 0;
  virtual void zero_grad() {}
  // The parameters that it reads, and every further tensor that it may change (buffers, optimizer state).
  virtual NamedTensors weights() const = 0;
  virtual NamedTensors mutable_state() const = 0;
};

// A replay adds this and the op's name to the context of an error that an op throws (c10::Error::add_context).
inline const std::string kReplayedOp = "in the replay of ";

// How one step is run.
enum class StepPath {
  kEager,             // op by op
  kRecord,            // op by op, while it is recorded for later replays
  kReplay,            // the recording
  kCheckAndReplay,    // the recording, after the host code was run without kernels and compared with it
  kReplayAndCompare,  // the recording and op by op, from one snapshot, compared bit by bit
};

// What an executor has decided about the next step.
struct StepPlan {
  StepPath path = StepPath::kEager;
  void* recording = nullptr;  // the executor's own: what it is about
};

// Steps that are done may have been wrong, all but those up to `sound_step`.
class DoubtError : public GraphError {
 public:
  DoubtError(const std::string& message, int64_t sound_step) : GraphError(message), sound_step_(sound_step) {}
  int64_t sound_step() const noexcept { return sound_step_; }

 private:
  int64_t sound_step_;
};

// Runs a StepCode: a mode is which executor the trainer has. For TrainStep it is called between begin() and end().
class StepExecutor {
 public:
  virtual ~StepExecutor() = default;
  // Decides how it runs next. Changes no weight; every path is a real step with the same result.
  virtual StepPlan choose(const MicroBatches& micro_batches, const StepObserver& observer) = 0;
  // `plan` is what choose() said for this step, its path perhaps kReplayAndCompare instead of kReplay, or kEager, which
  // always works.
  virtual StepResult run(const StepPlan& plan, const MicroBatches& micro_batches, StepObserver& observer) = 0;
  // Runs `work` where its steps run, in the order of the caller's work: on a device that may be a stream of its own,
  // and autograd's nodes belong to the stream that they are made on.
  virtual void on_stream(const std::function<void()>& work) { work(); }
  // Whether ranks must all take the same path, since collectives are part of what is captured.
  virtual bool ranks_need_same_path() const { return false; }
  // Before the state is saved and at the end of training: throws if steps are found that may have been wrong.
  virtual void settle(StepObserver& /*observer*/) {}
  // What nobody can find any more: since this executor was made, on this rank.
  virtual UncheckedSteps unchecked() const { return {}; }
  // The host numbers of the step (StepCode::append_key) were replaced, by a load.
  virtual void state_replaced() {}
  // What becomes of such a step in this mode, all but `mode` and `splits`. Changes nothing: see BaseTrainer::explain.
  // Unlike the others it is called between steps. `step` is the code that it runs.
  virtual StepExplanation explain(TrainStep& step, const MicroBatches& micro_batches, StepObserver& observer);
};

// The executors of one StepCode, by mode.
class StepExecutors {
 public:
  using MakeGraph = std::function<std::unique_ptr<StepExecutor>(StepCode&, at::Device)>;

  // `code` must outlive it. `make_graph` makes what runs it in graph mode; null: there is none.
  StepExecutors(StepCode& code, at::Device device, MakeGraph make_graph)
      : code_(code), device_(device), make_graph_(std::move(make_graph)) {}

  // Made when it is first asked for. Throws ConfigError if there is no such mode.
  StepExecutor& in(Mode mode);
  // Null if nobody has asked for it.
  StepExecutor* made(Mode mode) const { return executors_[static_cast<std::size_t>(mode)].get(); }
  void state_replaced() const;

 private:
  StepCode& code_;
  at::Device device_;
  MakeGraph make_graph_;
  std::array<std::unique_ptr<StepExecutor>, 2> executors_;
};

}  // namespace duet
