#pragma once

#include <functional>
#include <memory>
#include <optional>
#include "../base/state_dict.h"
#include "../distributed/communicator.h"
#include "../distributed/init_distributed.h"
#include "../optim/amp/grad_scaler.h"
#include "../optim/gradient_check.h"
#include "../optim/hyper_parameters.h"
#include "../optim/optimizers/optimizer.h"
#include "step_observer.h"
#include "task.h"

namespace duet {

// What happens to a step whose loss or gradients are not finite. It is decided before weights or state change.
enum class NonFinite {
  kApply,  // nothing is looked at, as in a plain loop; with loss scaling: kSkip
  kSkip,   // the step changes nothing and does not count for schedules, EMA and optimizer
  kRaise,  // likewise, no later step is applied either, and the run ends with NonFiniteError
};

struct TrainStepOptions {
  OptimizerOptions optimizer;
  std::optional<ClipGrad> clip_grad;             // ClipNorm or ClipValue; none: no clipping
  std::optional<at::ScalarType> amp;             // bfloat16, float16: autocast; none: full precision
  std::optional<LossScaleOptions> loss_scale{};  // none: dynamic with float16, else no scaling
  NonFinite non_finite = NonFinite::kApply;
  // Puts the task's trainable parameters into groups, each into one; empty: one group.
  std::function<ParamGroups(Task&, const OptimizerOptions&)> param_groups{};
  DistributedOptions distributed{};

  // Throws ConfigError naming the field and its range.
  void validate() const;
};

class DistributedStep;

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
  TrainStep(std::unique_ptr<Task> task, at::Device device, const TrainStepOptions& options);
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

  // Lets go of all gradients, so that backward makes new ones.
  void zero_grad();

  // Appends every host number that a captured run() would freeze; a step is captured once per key.
  void append_key(std::vector<int64_t>& key) const;
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

  std::size_t group_count() const override { return optimizer_->group_count(); }
  std::vector<std::string> names() const override { return optimizer_->names(); }
  bool has(std::size_t group, const std::string& name) const override { return optimizer_->has(group, name); }
  double get(std::size_t group, const std::string& name) const override { return optimizer_->get(group, name); }
  void set(std::size_t group, const std::string& name, double value) override;
  void set_schedule(const std::string& name, Curve curve) override;
  void clear_schedule(const std::string& name) override;
  int64_t applied() const override { return optimizer_->applied(); }

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
  TrainStepOptions options_;
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
