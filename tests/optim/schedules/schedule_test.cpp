#include "optim/schedules/schedule.h"
#include <cmath>
#include <limits>
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

TEST(Schedule, DecaysByGammaPerEpochWhenConverted) {
  Exponential exponential = Exponential{.gamma = 0.5, .begin = 2, .by_epoch = true};
  const ScheduleRun run = {1000, 30};
  const ScheduleCurve stepped({exponential}, "lr", run);
  exponential.convert_to_iter_based = true;
  const ScheduleCurve smooth({exponential}, "lr", run);
  for (int64_t epoch = 0; epoch < 20; ++epoch) {
    const double expected = epoch < 2 ? 1.0 : std::pow(0.5, static_cast<double>(epoch - 2));
    EXPECT_NEAR(stepped.at(epoch * 30, 1), expected, 1e-15);
    EXPECT_NEAR(smooth.at(epoch * 30, 1), expected, 1e-15);
    EXPECT_EQ(stepped.at(epoch * 30 + 29, 1), stepped.at(epoch * 30, 1));
  }
  EXPECT_LT(smooth.at(75, 1), stepped.at(75, 1));
}

TEST(Schedule, NamesFieldAndRangeOfABadValue) {
  const auto bad = [](const Schedule& options, const std::vector<std::string>& parts) {
    expect_error<ConfigError>([&] { check_schedule(options); }, parts);
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  bad(CustomSchedule{.type = "Cosin"}, {"type 'Cosin'", "Cosine", "WSD"});
  bad(Constant{.param_name = ""}, {"param_name"});
  bad(Constant{.begin = -1}, {"begin is -1", ">= 0"});
  bad(Constant{.begin = 5, .end = 5}, {"end 5", "after begin"});
  bad(Constant{.end = -2}, {"end is -2", "-1"});
  bad(Constant{.factor = -0.5}, {"factor is -0.5", ">= 0"});
  bad(Linear{.start_factor = nan}, {"start_factor is nan"});
  bad(Linear{.end_factor = -1}, {"end_factor is -1"});
  bad(Step{}, {"step_size is 0", "at least 1"});
  bad(Step{.step_size = 1, .gamma = 0}, {"gamma is 0", "> 0"});
  bad(MultiStep{}, {"milestones ()", "ascending"});
  bad(MultiStep{.milestones = {3, 2}}, {"milestones (3, 2)", "ascending"});
  bad(MultiStep{.milestones = {0, 2}}, {"milestones", ">= 1"});
  bad(Exponential{.gamma = -0.9}, {"gamma is -0.9", "> 0"});
  bad(Cosine{.T_max = -3}, {"T_max is -3", ">= 0"});
  bad(Cosine{.eta_min = -1}, {"eta_min is -1"});
  bad(Cosine{.eta_min_ratio = 1.5}, {"eta_min_ratio is 1.5", "[0, 1]"});
  bad(Cosine{.eta_min = 0.1, .eta_min_ratio = 0.5}, {"eta_min 0.1", "not both"});
  bad(Polynomial{.power = 0}, {"power is 0", "> 0"});
  bad(CosineRestart{}, {"periods ()", "at least 1"});
  bad(CosineRestart{.periods = {5, 0}}, {"periods (5, 0)", "at least 1"});
  bad(CosineRestart{.periods = {5, 5}, .restart_weights = {1}}, {"restart_weights (1)", "each of periods"});
  bad(CosineRestart{.periods = {5}, .restart_weights = {-1}}, {"restart_weights[0] is -1", "> 0"});
}

TEST(Schedule, NamesFieldAndRangeOfABadCycleDecayOrPlateau) {
  const auto bad = [](const Schedule& schedule, const std::vector<std::string>& parts) {
    expect_error<ConfigError>([&] { check_schedule(schedule); }, parts);
  };
  bad(OneCycle{.eta_max = -1}, {"eta_max is -1", ">= 0"});
  bad(OneCycle{.total_steps = -1}, {"total_steps is -1", ">= 0"});
  bad(OneCycle{.pct_start = 1.5}, {"pct_start is 1.5", "[0, 1]"});
  bad(OneCycle{.anneal_strategy = "sin"}, {"anneal_strategy is 'sin'", "cos, linear"});
  bad(OneCycle{.div_factor = 0}, {"div_factor is 0", "> 0"});
  bad(OneCycle{.final_div_factor = -2}, {"final_div_factor is -2", "> 0"});
  bad(OneCycle{.max_momentum = 1}, {"max_momentum is 1", "[0, 1)"});

  bad(WSD{}, {"decay_steps 0", "decay_ratio"});
  bad(WSD{.decay_steps = 5, .decay_ratio = 0.1}, {"decay_steps 5", "either"});
  bad(WSD{.warmup_steps = 5, .warmup_ratio = 0.1, .decay_steps = 1}, {"warmup_ratio 0.1", "not both"});
  bad(WSD{.warmup_ratio = 0.6, .decay_ratio = 0.6}, {"warmup_ratio + decay_ratio 1.2", "at most 1"});
  bad(WSD{.decay_ratio = -0.1}, {"decay_ratio is -0.1", "[0, 1]"});
  bad(WSD{.decay_steps = 5, .decay_type = "exp"}, {"decay_type is 'exp'", "linear, sqrt, cosine"});

  bad(ReduceOnPlateau{.monitor = ""}, {"monitor"});
  bad(ReduceOnPlateau{.rule = "min"}, {"rule is 'min'", "less, greater"});
  bad(ReduceOnPlateau{.factor = 1}, {"factor is 1", "(0, 1)"});
  bad(ReduceOnPlateau{.patience = -1}, {"patience is -1", ">= 0"});
  bad(ReduceOnPlateau{.threshold = -1}, {"threshold is -1", ">= 0"});
  bad(ReduceOnPlateau{.threshold_rule = "relative"}, {"threshold_rule is 'relative'", "rel, abs"});
  bad(ReduceOnPlateau{.cooldown = -1}, {"cooldown is -1", ">= 0"});
  bad(ReduceOnPlateau{.min_value = -1}, {"min_value is -1", ">= 0"});
  bad(ReduceOnPlateau{.eps = -1}, {"eps is -1", ">= 0"});
}

}  // namespace
}  // namespace duet
