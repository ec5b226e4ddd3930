#include "optim/schedules/schedule.h"
#include <cmath>
#include <gtest/gtest.h>
#include "base/error.h"
#include "optim/schedules/detail/schedule_rules.h"
#include "tests/support/expect_error.h"

namespace duet {
namespace {

using Schedules = std::vector<Schedule>;

double rate(const Schedules& schedules, int64_t step, int64_t run_length = 2000) {
  return ScheduleCurve(schedules, "lr", {run_length, 0}).at(step, 1.0);
}

TEST(Schedule, ChangesNothingWhenThereIsNone) { EXPECT_EQ(rate({}, 7), 1.0); }

TEST(Schedule, ReachesItsEndsExactly) {
  const Schedule linear = Linear{.start_factor = 0.1, .end_factor = 0.7, .begin = 5, .end = 15};
  EXPECT_EQ(rate({linear}, 4), 1.0);
  EXPECT_EQ(rate({linear}, 5), 0.1);
  EXPECT_EQ(rate({linear}, 14), 0.7);
  EXPECT_EQ(rate({linear}, 15), 0.7);
  EXPECT_EQ(rate({linear}, 1999), 0.7);

  const Schedule constant = Constant{.factor = 0.5, .begin = 5, .end = 15};
  EXPECT_EQ(rate({constant}, 4), 1.0);
  EXPECT_EQ(rate({constant}, 13), 0.5);
  EXPECT_EQ(rate({constant}, 14), 1.0);

  const Schedule polynomial = Polynomial{.power = 2, .eta_min = 0.25, .end = 11};
  EXPECT_EQ(rate({polynomial}, 0), 1.0);
  EXPECT_EQ(rate({polynomial}, 5), 0.25 + 0.75 * 0.25);
  EXPECT_EQ(rate({polynomial}, 10), 0.25);
  EXPECT_EQ(rate({polynomial}, 11), 0.25);

  const Schedule cosine = Cosine{.eta_min = 0.25, .end = 10};
  EXPECT_EQ(rate({cosine}, 0), 1.0);
  EXPECT_NEAR(rate({cosine}, 5), 0.625, 1e-15);
  EXPECT_GT(rate({cosine}, 9), 0.25);
  EXPECT_EQ(rate({cosine}, 10), rate({cosine}, 9));

  const Schedule wsd = WSD{.warmup_steps = 4, .decay_steps = 6, .eta_min = 0.25, .end = 20};
  EXPECT_EQ(rate({wsd}, 0), 0.25);
  EXPECT_EQ(rate({wsd}, 3), 1.0);
  EXPECT_EQ(rate({wsd}, 13), 1.0);
  EXPECT_LT(rate({wsd}, 14), 1.0);
  EXPECT_EQ(rate({wsd}, 19), 0.25);
  EXPECT_EQ(rate({wsd}, 20), 0.25);
}

TEST(Schedule, TakesTheGroupsOwnValueAsThePeakOfACycle) {
  const Schedule cycle = OneCycle{.div_factor = 10, .end = 101};
  const ScheduleCurve curve({cycle}, "lr", {});
  for (const double initial : {0.1, 2.0}) {
    EXPECT_DOUBLE_EQ(curve.at(0, initial), initial / 10);
    EXPECT_NEAR(curve.at(29, initial), initial, 1e-3);
    EXPECT_NEAR(curve.at(100, initial), initial * 1e-5, 1e-16);
    EXPECT_EQ(curve.at(500, initial), curve.at(100, initial));
  }
}

TEST(Schedule, TakesTheEndOfTheRunAsItsOwn) {
  EXPECT_EQ(rate({Linear{.start_factor = 0.5}}, 99, 100), 1.0);
  EXPECT_LT(rate({Linear{.start_factor = 0.5}}, 98, 100), 1.0);
  EXPECT_EQ(rate({Polynomial{}}, 99, 100), 0.0);
  EXPECT_EQ(rate({WSD{.decay_ratio = 0.5}}, 99, 100), 0.0);
  EXPECT_EQ(rate({Constant{.factor = 0.5}}, 99, 100), 0.5);  // never undone
  // A short trial of a long configuration: what would begin after the end does nothing.
  EXPECT_EQ(rate({Cosine{.begin = 100}}, 100, 50), 1.0);
  EXPECT_EQ(rate({Step{.step_size = 10}}, 25, 0), 0.1 * 0.1);
}

TEST(Schedule, IsDefinedForAnIntervalOfOneStep) {
  for (const int64_t step : {3, 4}) {
    EXPECT_EQ(rate({Linear{.end_factor = 0.5, .begin = 3, .end = 4}}, step), 0.5);
    EXPECT_EQ(rate({Constant{.factor = 0.5, .begin = 3, .end = 4}}, step), 1.0);
    EXPECT_EQ(rate({Cosine{.begin = 3, .end = 4}}, step), 1.0);
    EXPECT_EQ(rate({Polynomial{.begin = 3, .end = 4}}, step), 1.0);
    EXPECT_EQ(rate({CosineRestart{.periods = {1}, .begin = 3}}, step), 1.0);
    EXPECT_EQ(rate({WSD{.decay_steps = 1, .begin = 3, .end = 4}}, step), 0.0);
    EXPECT_TRUE(std::isfinite(rate({OneCycle{.begin = 3, .end = 4}}, step)));
  }
}

TEST(Schedule, NamesWhatCannotBe) {
  const auto bad = [](const Schedule& options, const std::vector<std::string>& parts) {
    expect_error<ConfigError>([&] { check_schedule(options); }, parts);
  };
  bad(CustomSchedule{.type = "Cosin"}, {"type 'Cosin'", "Cosine", "WSD"});
  bad(Constant{.param_name = ""}, {"param_name"});
  bad(Constant{.begin = -1}, {"begin is -1", ">= 0"});
  bad(Constant{.begin = 5, .end = 5}, {"end 5", "after begin"});
  bad(Constant{.factor = -0.5}, {"factor is -0.5", ">= 0"});
  bad(MultiStep{}, {"milestones ()", "ascending"});
  bad(MultiStep{.milestones = {3, 2}}, {"milestones (3, 2)", "ascending"});
  bad(Cosine{.eta_min = 0.1, .eta_min_ratio = 0.5}, {"eta_min 0.1", "not both"});
  bad(CosineRestart{}, {"periods ()", "at least 1"});
  bad(CosineRestart{.periods = {5, 0}}, {"periods (5, 0)", "at least 1"});
  bad(CosineRestart{.periods = {5, 5}, .restart_weights = {1}}, {"restart_weights (1)", "each of periods"});
  bad(OneCycle{.anneal_strategy = "sin"}, {"anneal_strategy is 'sin'", "cos, linear"});
  bad(WSD{}, {"decay_steps 0", "decay_ratio"});
  bad(WSD{.decay_steps = 5, .decay_ratio = 0.1}, {"decay_steps 5", "either"});
  bad(WSD{.warmup_steps = 5, .warmup_ratio = 0.1, .decay_steps = 1}, {"warmup_ratio 0.1", "not both"});
  bad(WSD{.warmup_ratio = 0.6, .decay_ratio = 0.6}, {"warmup_ratio + decay_ratio 1.2", "at most 1"});
  bad(ReduceOnPlateau{.monitor = ""}, {"monitor"});
  bad(ReduceOnPlateau{.factor = 1}, {"factor is 1", "(0, 1)"});
}

}  // namespace
}  // namespace duet
