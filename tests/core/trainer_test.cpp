#include <cstdlib>
#include <limits>
#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/ScopeExit.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "data/data_loader.h"
#include "data/dataset.h"
#include "tests/support/expect_error.h"
#include "tests/support/list_data.h"
#include "tests/support/loop_runs.h"
#include "tests/support/modes.h"
#include "tests/support/sample_state.h"

// The loop, in both modes: which hooks run when, where it ends, what an error does.

namespace duet {
namespace {

using ::testing::ElementsAre;
using testing::EveryPointHook;
using testing::loader;
using testing::make_trainer;
using testing::Names;
using testing::recorder;
using testing::trainer_for;
Names operator+(Names a, const Names& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

const Names kStep = {"before_train_iter", "after_backward", "before_optimizer_step", "after_optimizer_step",
                     "after_train_iter"};

Names pass_of(const std::string& what, int64_t batches) {
  Names names = {"before_" + what, "before_" + what + "_epoch"};
  for (int64_t i = 0; i < batches; ++i) names = names + Names{"before_" + what + "_iter", "after_" + what + "_iter"};
  return names + Names{"after_" + what + "_epoch", "after_" + what};
}

class Trainer : public testing::InBothModes {};

TEST_P(Trainer, MayAskForDeterministicKernels) {
  at::Context& context = at::globalContext();
  const auto put_back = c10::make_scope_exit([&context, fills = context.deterministicFillUninitializedMemory()] {
    context.setDeterministicAlgorithms(false, false);
    context.setDeterministicFillUninitializedMemory(fills);
  });
  for (const bool deterministic : {false, true}) {
    TrainerOptions options;
    options.loop.deterministic = deterministic;
    const auto trainer = make_trainer(GetParam(), testing::mlp_task().make(), options);
    EXPECT_EQ(context.deterministicAlgorithms(), deterministic);
    EXPECT_FALSE(context.deterministicAlgorithmsWarnOnly());
  }
}

TEST_P(Trainer, HooksRunInOneOrder) {
  for (const int64_t accumulate : {1, 3}) {
    for (const int64_t val_interval : {0, 2}) {
      SCOPED_TRACE("accumulate " + std::to_string(accumulate) + " val_interval " + std::to_string(val_interval));
      const int64_t per_epoch = accumulate == 1 ? 5 : 2;
      Names expected = {"before_run", "before_train"};
      int64_t step = 0;
      for (int64_t epoch = 0; epoch < 2; ++epoch) {
        expected = expected + Names{"before_train_epoch"};
        for (int64_t i = 0; i < per_epoch; ++i) {
          expected = expected + kStep;
          if (val_interval > 0 && ++step % val_interval == 0) expected = expected + pass_of("val", 2);
        }
        expected = expected + Names{"after_train_epoch"};
        if (val_interval == 0) expected = expected + pass_of("val", 2);
      }
      expected = expected + Names{"after_train", "after_run"};

      const auto trainer =
          trainer_for(mode(), {.max_epochs = 2, .accumulate = accumulate, .val_interval = val_interval});
      Names calls;
      trainer->add_hook(recorder(calls));
      trainer->train(*loader(10), loader(4).get());
      EXPECT_EQ(calls, expected);
      EXPECT_EQ(trainer->progress().step, 2 * per_epoch);
      EXPECT_EQ(trainer->progress().epoch, 2);
    }
  }
}

TEST_P(Trainer, AHookSeesTheStepThatIsMeant) {
  const auto trainer = trainer_for(mode(), {.max_epochs = 2, .accumulate = 3});
  std::vector<int64_t> windows, steps, epochs, within;
  trainer->add_hook(std::make_unique<EveryPointHook>("look", [&](const std::string& point, TrainContext& context) {
    EXPECT_EQ(context.mode, mode());
    EXPECT_EQ(context.progress.max_epochs, 2);
    EXPECT_EQ(context.step.micro_batches != nullptr, point.find("_iter") != std::string::npos ||
                                                         point.find("backward") != std::string::npos ||
                                                         point.find("optimizer") != std::string::npos)
        << point;
    if (point == "before_train_iter") {
      EXPECT_EQ(context.step.result, nullptr);
      windows.push_back(static_cast<int64_t>(context.step.micro_batches->batches.size()));
    }
    if (point == "after_train_iter") {
      EXPECT_EQ(context.progress.steps_per_epoch, 2);
      EXPECT_EQ(context.step.loss().dim(), 0);
      EXPECT_EQ(context.step.result->log.at(0).first, "error");
      steps.push_back(context.progress.step);
      epochs.push_back(context.progress.epoch);
      within.push_back(context.progress.step_in_epoch);
    }
  }));
  trainer->train(*loader(10));
  EXPECT_THAT(windows, ElementsAre(3, 2, 3, 2));
  EXPECT_THAT(steps, ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(epochs, ElementsAre(0, 0, 1, 1));
  EXPECT_THAT(within, ElementsAre(1, 2, 1, 2));
}

TEST_P(Trainer, StopsAtTheFirstLimit) {
  struct Limit {
    int64_t max_steps, max_epochs, steps, epochs;
  };
  for (const Limit& limit : {Limit{7, 0, 7, 1}, Limit{0, 2, 10, 2}, Limit{7, 2, 7, 1}, Limit{70, 2, 10, 2},
                             Limit{10, 0, 10, 2}, Limit{5, 3, 5, 1}}) {
    SCOPED_TRACE(std::to_string(limit.max_steps) + " " + std::to_string(limit.max_epochs));
    const auto trainer = trainer_for(mode(), {.max_steps = limit.max_steps, .max_epochs = limit.max_epochs});
    Names calls;
    trainer->add_hook(recorder(calls));
    const auto data = loader(10);
    trainer->train(*data);
    EXPECT_EQ(trainer->progress().step, limit.steps);
    EXPECT_EQ(trainer->progress().epoch, limit.epochs);
    EXPECT_EQ(std::count(calls.begin(), calls.end(), "after_train_epoch"), limit.epochs);
    EXPECT_EQ(trainer->stop_reason(), "");
    calls.clear();
    trainer->train(*data);  // nothing left to do
    EXPECT_THAT(calls, ElementsAre("before_run", "before_train", "after_train", "after_run"));
    EXPECT_EQ(trainer->progress().step, limit.steps);
  }
}

// A task that fails at one step, and before its first.
class FailingTask : public Task {
 public:
  NamedTensors named_parameters() const override { return {{"w", w_}}; }
  NamedTensors named_buffers() const override { return {}; }
  void train(bool on) override { training = on; }
  void to(at::Device) override {}
  double weight(const Batch& batch) const override { return weight_is ? *weight_is : Task::weight(batch); }
  StepOutput training_step(const Batch& batch) override {
    EXPECT_TRUE(training || !at::GradMode::is_enabled());
    if (fails) throw std::runtime_error("no forward");
    return {at::mul(batch["x"].mean(), w_).sum(), {}};
  }

  bool training = false;
  bool fails = false;
  std::optional<double> weight_is;

 private:
  at::Tensor w_ = at::ones({2}).requires_grad_(true);
};

Batch ones(int64_t rows) { return {{"x", at::ones({rows, 3})}}; }

TEST_P(Trainer, TheFirstErrorIsTheOneThatComesOut) {
  auto task = std::make_unique<FailingTask>();
  task->fails = true;
  TrainerOptions options;
  options.loop.max_steps = 3;
  const auto trainer = make_trainer(mode(), std::move(task), options);
  Names calls;
  std::string error;
  trainer->add_hook(std::make_unique<EveryPointHook>("bad", [&](const std::string& point, TrainContext& context) {
    error = context.control.error;
    if (point == "on_exception" || point == "after_train") {
      EXPECT_EQ(context.step.micro_batches, nullptr);
      EXPECT_EQ(context.step.result, nullptr);
      throw std::runtime_error("a second error");
    }
  }));
  trainer->add_hook(recorder(calls));
  const Batch all = {{"x", at::ones({4, 3})}};
  DataLoader data(std::make_shared<TensorDataset>(all.items()), std::make_unique<EpochSampler>(4, false, 0), {});
  expect_error<std::runtime_error>([&] { trainer->train(data); }, {"no forward"});
  EXPECT_EQ(error, "no forward");
  EXPECT_THAT(calls, ElementsAre("before_run", "before_train", "before_train_epoch", "before_train_iter",
                                 "on_exception", "after_train", "after_run"));
  EXPECT_EQ(trainer->progress().step, 0);
}

TEST_P(Trainer, WeightsThatAreNoCountsAreRefused) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const double bad : {0.0, -1.0, nan, std::numeric_limits<double>::infinity()}) {
    auto task = std::make_unique<FailingTask>();
    task->weight_is = bad;
    const auto trainer = make_trainer(mode(), std::move(task));
    expect_error<DataError>([&] { trainer->step(ones(2)); }, {"weight", "expected a count >"});
  }
  const auto trainer = make_trainer(mode(), std::make_unique<FailingTask>());
  expect_error<DataError>([&] { trainer->step(ones(0)); }, {"weight 0"});
  expect_error<DataError>([&] { trainer->step(std::vector<Batch>{ones(0), ones(0)}); }, {"weight 0"});
  expect_error<DataError>([&] { trainer->step(std::vector<Batch>()); }, {"no micro-batch"});
  EXPECT_EQ(trainer->progress().step, 0);
  trainer->step(ones(2));
  EXPECT_EQ(trainer->progress().step, 1);
}

TEST_P(Trainer, OptionsAndDataThatCannotWorkAreRefused) {
  expect_error<ConfigError>([&] { trainer_for(mode(), {})->train(*loader(4)); }, {"max_steps", "max_epochs"});
  expect_error<ConfigError>([&] { trainer_for(mode(), {.accumulate = 0}); }, {"accumulate is 0"});
  expect_error<ConfigError>([&] { trainer_for(mode(), {})->add_metric(nullptr); }, {"metric"});
  expect_error<ConfigError>([&] { make_trainer(mode(), nullptr); }, {"task"});

  const auto trainer = trainer_for(mode(), {.max_steps = 3});
  Names calls;
  trainer->add_hook(recorder(calls));
  testing::ListData empty({});
  expect_error<DataError>([&] { trainer->train(empty); }, {"no batch to learn from in epoch 0"});
  EXPECT_EQ(calls.back(), "after_run");
}

DUET_IN_BOTH_MODES(Trainer);

}  // namespace
}  // namespace duet
