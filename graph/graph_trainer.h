#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>
#include "../core/trainer.h"
#include "graph_options.h"

namespace duet {

class GraphExecutor;

// Compiles model, loss, backward, clipping and optimizer into one captured step per signature and replays it, and the
// forward passes of evaluations and predictions likewise.
// The first step of a signature runs eager, the second is recorded (both are real steps), the rest are replayed:
// bit-identical to EagerTrainer.
class GraphTrainer : public BaseTrainer {
 public:
  explicit GraphTrainer(std::unique_ptr<Task> task, const TrainerOptions& options = {}, const GraphOptions& graph = {});

  // One entry per signature seen, in order of first sight: those of steps, then of validations and of predictions.
  std::vector<SignatureReport> report() const;
  // Steps that ran eager, for whatever reason, and replays.
  int64_t eager_steps() const;
  int64_t replays() const;
  // The captured step of the latest step as text; empty if it was not captured.
  std::string program_text() const;

 private:
  GraphExecutor& graph() const;
};

// The step of a loop of your own, captured and replayed without a trainer: no hooks, counters or files. What happens
// in it, the signatures, checks and bits are those of GraphTrainer.
//
//   GraphStep step(make_task(net, loss), {.optimizer = AdamW{.lr = 1e-3}});
//   for (const Batch& batch : batches) total += step(batch).loss;
class GraphStep : public Stateful {
 public:
  // Of the options those of the step count: optimizer, clip_grad, amp, loss_scale, non_finite, param_groups, freeze,
  // device. Throws ConfigError for schedules, a work_dir or limits of a loop, and for several ranks.
  explicit GraphStep(std::unique_ptr<Task> task, const TrainerOptions& options = {}, const GraphOptions& graph = {});
  ~GraphStep() override;

  // One step on a batch, or on several micro-batches whose weighted mean counts. The results stay on the device and are
  // valid until the next step. The model's training flags stay as you set them.
  const StepResult& operator()(const Batch& batch);
  const StepResult& operator()(std::vector<Batch> micro_batches);
  // Of the latest step; nothing before the first one.
  const StepResult& result() const;
  // Whether results have the model's outputs too (StepResult::outputs): another capture.
  void keep_outputs(bool keep);

  // What becomes of such a step, as BaseTrainer::explain says; nothing is trained.
  StepExplanation explain(const Batch& batch);
  // How the steps to come are run: op by op, or captured. The same bits either way; captured steps stay.
  void set_mode(Mode mode);
  Mode mode() const;
  // Throws GraphError if replays so far may not be trusted; to be called after the last step.
  void settle();

  Task& task();
  HyperParameters& hyper_parameters();

  // One entry per signature seen, in order of first sight; none before the first step in graph mode.
  std::vector<SignatureReport> report() const;
  int64_t eager_steps() const;
  int64_t replays() const;

  // Weights and buffers ("model."), the optimizer's state and numbers ("optimizer."): the live tensors, not copies.
  StateDict state_dict() const override;
  // Copies the state in, also that of a trainer, of which the rest is left out. Throws CheckpointError for one that
  // does not fit; then nothing has changed.
  void load_state_dict(const StateDict& state) override;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace duet
