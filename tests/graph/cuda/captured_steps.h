#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include "base/device.h"
#include "core/detail/train_step.h"
#include "graph/detail/graph_executor.h"
#include "tests/support/changed_loss.h"
#include "tests/support/fake_capture.h"
#include "tests/support/toy_tasks.h"
#include "tests/support/trainer_runs.h"

// Runs of a step, eager and captured by a device that captures on the CPU.

namespace duet::testing {

using at::Tensor;

// Hooks at split points that change the gradients by a value read back, and a moving mean captured with the step.
class TestObserver : public StepObserver {
 public:
  explicit TestObserver(bool splits = false) : splits_(splits) {}
  bool splits() const override { return splits_; }
  void after_backward(const StepView& context) override {
    if (!splits_) return;
    ++backwards;
    EXPECT_FALSE(context.output.grad_norm.defined());
    const Tensor gradient = context.parameters.front().second.grad();
    gradient.mul_(gradient.abs().max().item<double>() > 0.01 ? 0.5 : 2.0);
  }
  void before_optimizer_step(const StepView& context) override {
    if (!splits_) return;
    ++optimizers;
    EXPECT_TRUE(context.output.grad_norm.defined());
    context.parameters.back().second.grad().add_(0.01);
  }
  void in_step(StepView& context) override {
    if (!mean.defined()) mean = at::zeros_like(context.parameters.front().second);
    mean.lerp_(context.parameters.front().second.detach(), 0.1);
  }

  int backwards = 0;
  int optimizers = 0;
  Tensor mean;

 private:
  bool splits_;
};

inline OptimizerOptions of_type(const std::string& type) {
  OptimizerOptions optimizer = OptimizerOptions::of_type(type);
  optimizer.set("lr", 1e-2);
  if (type == "SGD") optimizer.set("momentum", 0.9);
  return optimizer;
}

struct Setting {
  ToyTask task = testing::mlp_task();
  OptimizerOptions optimizer = of_type("AdamW");
  int64_t accumulate = 1;
  bool splits = false;
  int64_t steps = 15;
  std::string fail_at{};
  int fail_countdown = 0;
  std::shared_ptr<Communicator> ranks = one_process();
  GraphOptions graph{};
  std::function<void(HyperParameters& numbers)> schedule{};
};

// The perceptron, whose loss goes through `map`, which knows the number of the call. `calls` counts those of a run.
inline ToyTask mapped_loss(int64_t& calls, std::function<Tensor(const Tensor& loss, int64_t call)> map) {
  return mlp_with_loss([&calls, map = std::move(map)] {
    calls = 0;
    return [&calls, map](const Tensor& loss) { return map(loss, ++calls); };
  });
}

inline TrainerOptions options_of(const Setting& setting) {
  TrainerOptions options;
  options.optimizer = setting.optimizer;
  options.clip_grad = ClipNorm{0.5, 2.0};
  options.distributed = {.communicator = setting.ranks, .bucket_bytes = 64, .first_bucket_bytes = 64};
  return options;
}

inline MicroBatches window_at(const Setting& setting, int64_t n) {
  MicroBatches micro_batches;
  for (int64_t i = 0; i < setting.accumulate; ++i) {
    micro_batches.batches.push_back(setting.task.batch(8 - i, static_cast<uint64_t>(10 * n + i)));
    micro_batches.weights.push_back(static_cast<double>(8 - i));
    micro_batches.total += micro_batches.weights.back();
  }
  return micro_batches;
}

// One step after the other, by device graphs (on the CPU) or by CPU programs.
class Steps {
 public:
  Steps(const Setting& setting, bool by_device, std::unique_ptr<TestObserver> observer = nullptr)
      : setting_(setting), observer_(std::move(observer)) {
    if (observer_ == nullptr) observer_ = std::make_unique<TestObserver>(setting.splits);
    seed_all(11);
    step_ = std::make_unique<TrainStep>(setting.task.make(), at::kCPU, options_of(setting));
    step_->task().train(true);
    if (setting.schedule) setting.schedule(*step_);
    log->step = step_.get();
    log->outside = &observer_->mean;
    log->fail_at = setting.fail_at;
    log->fail_countdown = setting.fail_countdown;
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
  StepResult step(bool captured = true) {
    next_path();
    return run(captured);
  }

  SignatureReport report() const { return executor_->report().back(); }
  std::vector<SignatureReport> reports() const { return executor_->report(); }
  TrainStep& train_step() { return *step_; }
  const TestObserver& observer() const { return *observer_; }

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

struct Outcome {
  std::vector<double> losses;
  std::vector<NamedTensors> gradients;
  NamedTensors state;
  std::shared_ptr<FakeLog> log;
  std::vector<SignatureReport> report;
  int backwards = 0;
  int optimizers = 0;
};

inline Outcome run(const Setting& setting, bool captured) {
  Outcome outcome;
  Steps steps(setting, /*by_device=*/true);
  outcome.log = steps.log;
  TrainStep& step = steps.train_step();
  for (int64_t n = 0; n < setting.steps; ++n) {
    const StepResult output = steps.step(captured);
    outcome.losses.push_back(output.loss.item<double>());
    outcome.losses.push_back(output.grad_norm.item<double>());
    NamedTensors gradients;
    for (const auto& [name, tensor] : step.parameters()) {
      if (tensor.grad().defined()) gradients.emplace_back(name, tensor.grad().clone());
    }
    outcome.gradients.push_back(gradients);
  }
  for (const auto& [name, tensor] : step.parameters()) outcome.state.emplace_back(name, tensor.detach().clone());
  for (const auto& [name, tensor] : step.mutable_state()) outcome.state.emplace_back(name, tensor.clone());
  outcome.state.emplace_back("mean", steps.observer().mean.clone());
  outcome.state.emplace_back("random", random_state().tensor("cpu").clone());
  outcome.report = steps.reports();
  outcome.backwards = steps.observer().backwards;
  outcome.optimizers = steps.observer().optimizers;
  return outcome;
}

// Runs both ways; returns the captured one.
inline Outcome expect_eager_bits(const Setting& setting) {
  const Outcome eager = run(setting, false);
  Outcome graph = run(setting, true);
  EXPECT_EQ(eager.losses, graph.losses);
  EXPECT_EQ(eager.state.size(), graph.state.size());
  for (std::size_t i = 0; i < std::min(eager.state.size(), graph.state.size()); ++i) {
    EXPECT_TRUE(same_bits(eager.state[i].second, graph.state[i].second)) << eager.state[i].first;
  }
  for (std::size_t n = 0; n < eager.gradients.size(); ++n) {
    EXPECT_EQ(eager.gradients[n].size(), graph.gradients[n].size());
    for (std::size_t i = 0; i < std::min(eager.gradients[n].size(), graph.gradients[n].size()); ++i) {
      EXPECT_TRUE(same_bits(eager.gradients[n][i].second, graph.gradients[n][i].second))
          << eager.gradients[n][i].first << " at step " << n;
    }
  }
  EXPECT_EQ(eager.backwards, graph.backwards);
  EXPECT_EQ(eager.optimizers, graph.optimizers);
  return graph;
}

}  // namespace duet::testing
