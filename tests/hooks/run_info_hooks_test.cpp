#include "hooks/detail/run_info_hooks.h"
#include <cmath>
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include "base/device.h"
#include "hooks/detail/log_text.h"
#include "tests/support/fakes.h"
#include "tests/support/log_lines.h"
#include "tests/support/loop_runs.h"
#include "tests/support/modes.h"

namespace duet {
namespace {

double gauge(const FakeRun& run, const std::string& name) {
  const auto& gauges = run.context.log.gauges();
  return gauges.count(name) == 0 ? -1 : gauges.at(name)();
}

TEST(RuntimeInfo, PublishesTheRateThatTheStepUsedAndTheLargestWhileGroupsDiffer) {
  FakeRun one_group, run({0.1, 0.3, 0.2});
  RuntimeInfoHook hook, of_one;
  of_one.before_train(one_group.context);
  EXPECT_EQ(gauge(one_group, "max_lr"), -1) << "one group has no other";
  hook.before_train(run.context);
  EXPECT_EQ(gauge(run, "lr"), 0.1);
  EXPECT_EQ(gauge(run, "max_lr"), 0.3);
  run.hyper_parameters.set(0, "lr", 0.3);
  EXPECT_EQ(gauge(run, "lr"), 0.3);
  EXPECT_TRUE(std::isnan(gauge(run, "max_lr")));
}

TEST(RuntimeInfo, PublishesMomentumOnceItHasMoved) {
  for (const char* name : {"momentum", "beta1"}) {
    FakeRun run;
    run.hyper_parameters.give(0, name, 0.9);
    RuntimeInfoHook hook;
    hook.before_train(run.context);
    EXPECT_TRUE(std::isnan(gauge(run, "momentum")));
    run.hyper_parameters.set(0, name, 0.8);
    EXPECT_EQ(gauge(run, "momentum"), 0.8);
    run.hyper_parameters.set(0, name, 0.9);
    EXPECT_EQ(gauge(run, "momentum"), 0.9);

    RuntimeInfoHook resumed;
    resumed.load_state_dict(hook.state_dict());
    resumed.before_train(run.context);
    EXPECT_EQ(gauge(run, "momentum"), 0.9);
  }
}

TEST(RuntimeInfo, SaysWhatRunsWhere) {
  FakeRun run;
  std::string published;
  const auto listening = run.context.log.listen(
      nullptr, [&](const std::string& name, const std::string& text) { published = name + ": " + text; });
  seed_all(4711);
  RuntimeInfoHook hook;
  const std::string text = testing::stderr_of([&] { hook.before_run(run.context); });
  EXPECT_EQ(testing::stderr_of([&] { hook.before_train(run.context); }), "");
  for (const std::string& said : {text, published}) {
    EXPECT_NE(said.find("EagerTrainer on cpu, seed 4711"), std::string::npos) << said;
    EXPECT_NE(said.find("LibTorch 2."), std::string::npos) << said;
  }
  EXPECT_EQ(published.substr(0, 14), "runtime_info: ");
}

class SummaryTask : public FakeTask {
 public:
  NamedTensors named_parameters() const override {
    const auto trained = [](at::Tensor tensor) { return tensor.requires_grad_(); };
    return {{"net.stem.weight", trained(at::zeros({4, 5}))},
            {"net.stem.bias", trained(at::zeros({5}))},
            {"net.body.0.weight", trained(at::zeros({100}))},
            {"net.body.1.weight", at::zeros({1000})},
            {"net.head.weight", at::zeros({7}, at::kDouble)}};
  }
  NamedTensors named_buffers() const override { return {{"net.body.mean", at::zeros({3})}}; }
  std::vector<ModuleInfo> modules() const override {
    return {{"", "TopImpl"}, {"net", "NetImpl"}, {"net.stem", "LinearImpl"}, {"net.body", "Sequential"}};
  }
};

TEST(ModelSummary, CountsThePartsOfTheFirstLevelThatHasSeveral) {
  const SummaryTask task;
  EXPECT_EQ(model_summary(task),
            "model: 1132 parameters (0.0 MiB), 125 trainable, 3 values in buffers\n"
            "  net.stem  Linear        25\n"
            "  net.body  Sequential  1100  100 trainable\n"
            "  net.head                 7  frozen");
}

class IterTimer : public ::testing::Test {
 protected:
  IterTimerHook hook{[this] { return now; }};
  FakeRun run;
  double now = 100;

  void step(double data, double work) {
    now += data;
    run.context.step.data_seconds = data;
    hook.before_train_iter(run.context);
    now += work;
    hook.after_train_iter(run.context);
  }
};

TEST_F(IterTimer, MeasuresFromTheEndOfTheStepBefore) {
  hook.before_train(run.context);
  step(1, 2);
  EXPECT_DOUBLE_EQ(run.context.step.seconds, 3);
  now += 4;  // another hook waits for the device
  step(1, 2);
  EXPECT_DOUBLE_EQ(run.context.step.seconds, 7);
  hook.before_val(run.context);
  now += 1000;  // neither a validation counts nor the turn of an epoch
  hook.after_val(run.context);
  step(1, 2);
  EXPECT_DOUBLE_EQ(run.context.step.seconds, 3);
  now += 500;
  hook.before_train_epoch(run.context);
  step(1, 2);
  EXPECT_DOUBLE_EQ(run.context.step.seconds, 3);
}

TEST_F(IterTimer, MeasuresEpochsWithoutTheirValidations) {
  hook.before_train(run.context);
  step(1, 2);  // of an epoch that began in another process
  hook.after_train_epoch(run.context);
  EXPECT_EQ(run.context.progress.epoch_seconds, 0);
  for (const double work : {2.0, 5.0}) {
    now += 100;
    hook.before_train_epoch(run.context);
    step(1, work);
    hook.before_val(run.context);
    now += 1000;
    hook.after_val(run.context);
    step(1, work);
    hook.after_train_epoch(run.context);
    EXPECT_DOUBLE_EQ(run.context.progress.epoch_seconds, 2 * (1 + work));
  }
}

TEST_F(IterTimer, PublishesWhenTheRunWillEnd) {
  const auto eta = [&] { return run.context.log.gauges().at("eta")(); };
  run.context.progress.max_steps = 10;
  run.context.progress.step = 4;  // a resumed run: the steps before took another run's time
  hook.before_train(run.context);
  EXPECT_TRUE(std::isnan(eta()));
  for (int i = 0; i < 2; ++i) {
    step(1, 2);
    ++run.context.progress.step;
  }
  EXPECT_DOUBLE_EQ(eta(), 4 * 3);
  now += 6;  // a validation: there will be more of them
  EXPECT_DOUBLE_EQ(eta(), 4 * 6);
  run.context.progress.step = 10;
  EXPECT_DOUBLE_EQ(eta(), 0);
  run.context.progress.max_steps = 0;
  EXPECT_TRUE(std::isnan(eta())) << "a run without an end";
  hook.after_train(run.context);
  EXPECT_EQ(run.context.log.gauges().count("eta"), 0U);
}

class DistSamplerSeed : public testing::InBothModes {
 protected:
  static std::string log_of(bool shuffle) {
    return testing::stderr_of([shuffle] {
      const auto trainer = testing::trainer_for(GetParam(), {.max_epochs = 2});
      trainer->add_hook(std::make_unique<DistSamplerSeedHook>());
      const auto data = testing::loader(12, 4, shuffle);
      for (int training = 0; training < 2; ++training) trainer->train(*data);
    });
  }
};

TEST_P(DistSamplerSeed, WarnsOnceIfTheOrderStays) {
  const std::string log = log_of(false);
  EXPECT_NE(log.find("the same order in every epoch"), std::string::npos) << log;
  EXPECT_EQ(log.find("[DistSamplerSeedHook]"), log.rfind("[DistSamplerSeedHook]")) << log;
  EXPECT_EQ(log_of(true).find("[DistSamplerSeedHook]"), std::string::npos);
}

DUET_IN_BOTH_MODES(DistSamplerSeed);

}  // namespace
}  // namespace duet
