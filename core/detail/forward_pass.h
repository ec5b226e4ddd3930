#pragma once

#include <optional>
#include <vector>
#include <c10/util/ScopeExit.h>
#include "core/detail/step_executor.h"
#include "core/task.h"

namespace duet {

// The training flags of a task, which are off while somebody evaluates it and then what they were.
class EvaluationMode {
 public:
  explicit EvaluationMode(Task& task) : task_(task) {}

  // For as long as what it returns lives: a pass, or one batch. May be nested.
  [[nodiscard]] auto scope() {
    if (depth_ == 0) {
      flags_ = task_.training_flags();
      task_.train(false);
    }
    ++depth_;
    return c10::make_scope_exit([this] {
      if (--depth_ == 0) task_.set_training_flags(flags_);
    });
  }

 private:
  Task& task_;
  int depth_ = 0;
  std::vector<bool> flags_;  // before
};

// One forward pass over one batch, without gradients: Task::validation_step or Task::predict, whose outputs are the log
// of its result. Called while the task evaluates.
class ForwardPass : public StepCode {
 public:
  // The task must outlive it. No `autocast`: full precision.
  ForwardPass(CodeKind kind, Task& task, at::Device device, std::optional<at::ScalarType> autocast)
      : kind_(kind), task_(task), device_(device), autocast_(autocast) {}

  StepResult run(const MicroBatches& micro_batches, StepObserver& observer) override;
  CodeKind kind() const override { return kind_; }
  void append_key(std::vector<int64_t>& key) const override;
  // It exchanges nothing with others.
  Communicator& communicator() const override { return *one_process(); }
  const NamedTensors& parameters() const override { return no_gradients_; }
  NamedTensors weights() const override { return task_.named_parameters(); }
  NamedTensors mutable_state() const override { return task_.named_buffers(); }

 private:
  CodeKind kind_;
  Task& task_;
  at::Device device_;
  std::optional<at::ScalarType> autocast_;
  NamedTensors no_gradients_;
};

// The forward passes of a trainer, run as its mode says.
class ForwardPasses {
 public:
  struct Settings {
    at::Device device;
    std::optional<at::ScalarType> autocast{};  // none: full precision
    StepExecutors::MakeGraph make_graph{};     // null: there is no graph mode
  };
  // The task must outlive it.
  ForwardPasses(Task& task, const Settings& settings);

  void set_mode(Mode mode);
  // What the task gives for a batch on its device, in tensors that nobody changes later.
  NamedTensors run(CodeKind kind, const Batch& batch);
  // What it runs.
  StepCode& code(CodeKind kind) { return (kind == CodeKind::kValidation ? validation_ : prediction_).code; }
  // Throws GraphError if what replays gave so far may not be trusted.
  void settle();

  // On while a batch runs; hooks of a pass over many find it on all along.
  EvaluationMode& evaluation_mode() { return evaluation_mode_; }
  // Those of graph mode that have been used.
  std::vector<StepExecutor*> graph_executors() const;

 private:
  struct Pass {
    Pass(CodeKind kind, Task& task, const Settings& settings)
        : code(kind, task, settings.device, settings.autocast), executors(code, settings.device, settings.make_graph) {}
    ForwardPass code;
    StepExecutors executors;
  };

  EvaluationMode evaluation_mode_;
  Pass validation_, prediction_;
  Mode mode_ = Mode::kEager;
  StepObserver nobody_;
};

}  // namespace duet
