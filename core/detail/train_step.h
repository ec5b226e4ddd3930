#pragma once

#include <cstdint>
#include <memory>
#include <vector>
#include "base/state_dict.h"
#include "core/detail/norm_buffers.h"
#include "core/detail/step_executor.h"
#include "core/detail/trained_parameters.h"
#include "core/task.h"
#include "core/train_context.h"
#include "core/trainer_options.h"
#include "optim/detail/gradient_check.h"
#include "optim/optimizers/detail/optimizer.h"

namespace duet {

class DistributedStep;
class GradScaler;
class Optimizer;

// The one step of both modes: forward and backward of each micro-batch, global norm, optimizer. run() is plain code
// over tensors that reads nothing back to the host and holds no host number that may change: eager mode calls it, graph
// mode records it.
//
// The gradient of a step is the weighted mean over its micro-batches on all ranks, equal to that of one big batch. The
// weight scales the scalar loss; a single micro-batch in one process has no factor at all.
// It is large since all that both modes share of a step stands in one place, where neither can differ.
class TrainStep : public StepCode, public HyperParameters, public Stateful {
 public:
  // Moves the task to `device`. Throws ConfigError if the task has no trainable parameter or the groups do not hold
  // each. With several ranks, on all of them if their models differ.
  TrainStep(std::unique_ptr<Task> task, at::Device device, const TrainerOptions& options);
  ~TrainStep() override;

  // Throws ConfigError for a trainable parameter that the model has got since.
  void check_parameters() const;
  // Host side before a step: brings the hyper-parameters and the weights of the micro-batches to the device. Never
  // captured.
  void begin(const MicroBatches& micro_batches);
  StepResult run(const MicroBatches& micro_batches, StepObserver& observer) override;
  void run_rest(SplitPoint passed, StepResult& output, StepObserver& observer) override;
  // Host side after a step, in whichever way it ran.
  void end();
  // Host side at the end of training and before its state is saved: finds out what is still open and throws if that is
  // an error.
  void settle();

  // Forward and backward, op by op and without loss scale: see TrainerServices::trace_non_finite.
  NonFiniteOp trace_non_finite(const MicroBatches& micro_batches);
  std::size_t micro_batch() const override { return micro_batch_; }

  // Lets go of all gradients, so that backward makes new ones.
  void zero_grad() override;

  CodeKind kind() const override { return CodeKind::kStep; }
  void append_key(std::vector<int64_t>& key) const override;
  int64_t plan_version() const override;
  std::string why_not_captured() const override;

  Communicator& communicator() const override { return *options_.distributed.communicator; }
  // A number that is the same on ranks whose models still have the same layout, that is which parameters train and what
  // shapes the buffers have, and that set the same hyper-parameters.
  uint64_t fingerprint() const;
  // Called on all ranks where it is not the same: the next step, which runs op by op, compares layouts and
  // hyper-parameters even on a rank that sees no change of its own. Otherwise one that does would wait for the others.
  void recheck_ranks();

  at::Device device() const { return device_; }
  const TrainerOptions& options() const { return options_; }
  Task& task() { return *task_; }
  // Trainable parameters, and every further tensor that run() changes (buffers, optimizer state).
  const NamedTensors& parameters() const override { return parameters_; }
  NamedTensors weights() const override { return parameters_; }
  NamedTensors mutable_state() const override;

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
  void check_no_gradients() const;
  void forward_backward(const MicroBatches& micro_batches, StepResult& output, bool keeps_outputs);
  void backward(const at::Tensor& loss);
  void lay_out_gradients() const;
  std::vector<at::Tensor> gradients() const;
  GradientCheck check_output_gradients(StepResult& output);
  void keep_verdict(GradientCheck& verdict);
  void step_with_closure(const MicroBatches& micro_batches, StepResult& output, bool keeps_outputs);
  void raise_if_non_finite();

  std::unique_ptr<Task> task_;
  at::Device device_;
  TrainerOptions options_;
  NamedTensors parameters_;
  NamedTensors frozen_;                         // the task's others, unless these may be left out
  std::unique_ptr<OutsideParameters> outside_;  // null: every parameter is trained
  std::optional<ClipGrad> clip_;
  std::unique_ptr<GradScaler> scaler_;  // null: no loss scaling
  NormBuffers norm_buffers_;            // none: no step is skipped
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<DistributedStep> distributed_;  // null: one process
  std::vector<at::Tensor> factors_;               // weight / total of each micro-batch, 0-dim float32
  GradientCheck kept_verdict_;                    // of the step that runs, where hooks act within it
  at::Tensor failed_;                             // kRaise: 1 since a step was not finite; float32 [1]
  static constexpr int64_t kReadInterval = 50;    // steps between two looks at failed_ where a look costs a wait
  bool takes_sparse_ = false;                     // gradients of any layout
  bool lays_out_ = true;                          // gradients as their parameters, strides too
  bool checks_loss_ = false;                      // non_finite was asked for
  int64_t unread_steps_ = 0;                      // since failed_ was last read
  std::size_t micro_batch_ = 0;                   // whose host code runs
};

}  // namespace duet
