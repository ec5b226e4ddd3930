#include <cmath>
#include <gtest/gtest.h>
#include "hooks/detail/run_info_hooks.h"
#include "tests/support/fakes.h"

namespace duet {
namespace {

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
}

TEST_F(IterTimer, LeavesOutValidationAndTheTurnOfAnEpoch) {
  hook.before_train(run.context);
  step(1, 2);
  hook.before_val(run.context);
  now += 1000;
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

}  // namespace
}  // namespace duet
