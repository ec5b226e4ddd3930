#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>
#include "base/state_dict.h"
#include "core/task.h"
#include "core/train_context.h"
#include "core/trainer_options.h"
#include "optim/optimizers/detail/optimizer.h"

namespace duet {

// Who acts inside a step, and where. At the two split points ordinary host code runs between kernels; in_step adds
// tensor code that is captured with the step.
class StepObserver {
 public:
  virtual ~StepObserver() = default;
  // Whether anybody acts at a split point: a captured step is then cut there.
  virtual bool splits() const { return false; }
  // Changes when the set of those who act inside steps changes.
  virtual int64_t version() const { return 0; }
  virtual void after_backward(const StepView&) {}
  virtual void before_optimizer_step(const StepView&) {}
  virtual void in_step(StepView&) {}
};

// How one step is run.
enum class StepPath {
  kEager,             // op by op
  kRecord,            // op by op, while it is recorded for later replays
  kReplay,            // the recording
  kCheckAndReplay,    // the recording, after the host code was run without kernels and compared with it
  kReplayAndCompare,  // the recording and op by op, from one snapshot, compared bit by bit
};

struct StepExplanation;

// Runs TrainStep::run(): a mode is which executor the trainer has. Called between TrainStep::begin() and end().
class StepExecutor {
 public:
  virtual ~StepExecutor() = default;
  // Decides how the next step runs. Changes no weight; every path is a real step with the same result.
  virtual StepPath choose(const MicroBatches& micro_batches, const StepObserver& observer) = 0;
  // `path` is what choose() said for this step, kReplayAndCompare instead of kReplay, or kEager, which always works.
  virtual StepResult run(StepPath path, const MicroBatches& micro_batches, StepObserver& observer) = 0;
  // Whether ranks must all take the same path, since collectives are part of what is captured.
  virtual bool ranks_need_same_path() const { return false; }
  // Before the state is saved and at the end of training: throws if steps may have been wrong.
  virtual void settle(StepObserver& /*observer*/) {}
  // The host numbers of the step (TrainStep::append_key) were replaced, by a load.
  virtual void state_replaced() {}
  // What becomes of such a step in this mode, all but `mode` and `splits`. Changes nothing: see BaseTrainer::explain.
  // Unlike the others it is called between steps.
  virtual StepExplanation explain(const MicroBatches& micro_batches, StepObserver& observer);
};

class DistributedStep;
class Optimizer;
struct GradientCheck;

// The one step of both modes: forward and backward of each micro-batch, global norm, optimizer. run() is plain code
// over tensors that reads nothing back to the host and holds no host number that may change: eager mode calls it, graph
// mode records it.
//
// The gradient of a step is the weighted mean over its micro-batches on all ranks, equal to that of one big batch. The
// weight scales the scalar loss; a single micro-batch in one process has no factor at all.
class TrainStep : public HyperParameters, public Stateful {
 public:
  // Moves the task to `device`. Throws ConfigError if the task has no trainable parameter or the groups do not hold
  // each. With several ranks, on all of them if their models differ.
  TrainStep(std::unique_ptr<Task> task, at::Device device, const TrainerOptions& options);
  ~TrainStep() override;

  // Host side before a step: brings the hyper-parameters and the weights of the micro-batches to the device. Never
  // captured.
  void begin(const MicroBatches& micro_batches);
  StepResult run(const MicroBatches& micro_batches, StepObserver& observer);
  // Host side after a step, in whichever way it ran.
  void end();
  // Host side at the end of training and before its state is saved: finds out what is still open and throws if that is
  // an error.
  void settle();

  // Forward and backward, op by op and without loss scale: see TrainContext::trace_non_finite.
  NonFiniteOp trace_non_finite(const MicroBatches& micro_batches);

  // Lets go of all gradients, so that backward makes new ones.
  void zero_grad();

  // Appends every host number that a captured run() would freeze; a step is captured once per key.
  void append_key(std::vector<int64_t>& key) const;
  // Part of the key: steps that were captured under a smaller one never come back.
  int64_t plan_version() const;
  // Why run() cannot be captured at all, in words for the user; empty: it can.
  std::string why_not_captured() const;

  // The ranks that run steps together.
  Communicator& communicator() const { return *options_.distributed.communicator; }
  // A number that is the same on ranks whose models still have the same layout, that is which parameters train and what
  // shapes the buffers have, and that set the same hyper-parameters.
  uint64_t fingerprint() const;
  // Called on all ranks where it is not the same: the next step, which runs op by op, compares layouts and
  // hyper-parameters even on a rank that sees no change of its own. Otherwise one that does would wait for the others.
  void recheck_ranks();

  at::Device device() const { return device_; }
  Task& task() { return *task_; }
  // Trainable parameters, and every further tensor that run() changes (buffers, optimizer state).
  const NamedTensors& parameters() const { return parameters_; }
  NamedTensors mutable_state() const;

  std::size_t group_count() const override;
  std::vector<std::string> names() const override;
  bool has(std::size_t group, const std::string& name) const override;
  double get(std::size_t group, const std::string& name) const override;
  void set(std::size_t group, const std::string& name, double value) override;
  void set_schedule(const std::string& name, Curve curve) override;
  void clear_schedule(const std::string& name) override;
  int64_t applied() const override;

  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

 private:
  void check_frozen() const;
  void forward_backward(const MicroBatches& micro_batches, StepResult& output);
  std::vector<at::Tensor> gradients() const;
  GradientCheck judge(StepResult& output);
  void step_with_closure(const MicroBatches& micro_batches, StepResult& output);
  void raise_if_non_finite();

  std::unique_ptr<Task> task_;
  at::Device device_;
  TrainerOptions options_;
  NamedTensors parameters_;
  NamedTensors frozen_;                 // the task's others
  std::unique_ptr<GradScaler> scaler_;  // null: no loss scaling
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<DistributedStep> distributed_;  // null: one process
  std::vector<at::Tensor> factors_;               // weight / total of each micro-batch, 0-dim float32
  at::Tensor failed_;                             // kRaise: 1 since a step was not finite; float32 [1]
  static constexpr int64_t kReadInterval = 50;    // steps between two looks at failed_ where a look costs a wait
  bool checks_loss_ = false;                      // non_finite was asked for
  int64_t unread_steps_ = 0;                      // since failed_ was last read
};

}  // namespace duet
