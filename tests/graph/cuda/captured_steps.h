#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include "core/detail/train_step.h"
#include "graph/detail/graph_executor.h"
#include "tests/graph/cuda/captured_runs.h"
#include "tests/support/fake_capture.h"

namespace duet::testing {

// One step after the other, by device graphs (on the CPU) or by CPU programs.
class Steps {
 public:
  Steps(const Setting& setting, bool by_device, std::unique_ptr<TestObserver> observer = nullptr)
      : setting_(setting), observer_(std::move(observer)) {
    if (observer_ == nullptr) observer_ = std::make_unique<TestObserver>(setting.splits);
    seed_all(11);
    step_ = std::make_unique<TrainStep>(setting.task.make(), at::kCPU, options_of(setting));
    step_->task().train(true);
    log->step = step_.get();
    log->outside = &observer_->mean;
    executor_ = std::make_unique<GraphExecutor>(*step_, by_device ? fake_method(log) : capture_method_for(at::kCPU),
                                                setting.graph);
  }

  StepPath next_path() {
    micro_batches_ = window_at(setting_, n_++);
    step_->begin(micro_batches_);
    plan_ = executor_->choose(micro_batches_, *observer_);
    return plan_.path;
  }
  StepResult run(bool captured = true) {
    StepResult result =
        captured ? executor_->run(plan_, micro_batches_, *observer_) : step_->run(micro_batches_, *observer_);
    step_->end();
    return result;
  }
  StepResult step() {
    next_path();
    return run();
  }

  SignatureReport report() const { return executor_->report().back(); }
  TrainStep& train_step() { return *step_; }

  std::shared_ptr<FakeLog> log = std::make_shared<FakeLog>();

 private:
  Setting setting_;
  std::unique_ptr<TestObserver> observer_;
  std::unique_ptr<TrainStep> step_;
  MicroBatches micro_batches_;
  StepPlan plan_;
  int64_t n_ = 0;
  std::unique_ptr<GraphExecutor> executor_;  // goes first: captured steps refer to the others
};

}  // namespace duet::testing
