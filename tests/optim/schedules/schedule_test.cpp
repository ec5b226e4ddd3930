#include "optim/schedules/schedule.h"
#include <cmath>
#include <limits>
#include <gtest/gtest.h>
#include "base/error.h"
#include "optim/schedules/schedule_curve.h"
#include "tests/support/expect_error.h"

namespace duet {
namespace {

using Schedules = std::vector<ScheduleOptions>;

double rate(const Schedules& schedules, int64_t step, int64_t run_length = 2000) {
  return ScheduleCurve(schedules, "lr", {run_length, 0}).at(step, 1.0);
}

TEST(Schedule, ChangesNothingWhenThereIsNone) { EXPECT_EQ(rate({}, 7), 1.0); }

TEST(Schedule, ReachesItsEndsExactly) {
  const ScheduleOptions linear = {.type = "Linear", .begin = 5, .end = 15, .start_factor = 0.1, .end_factor = 0.7};
  EXPECT_EQ(rate({linear}, 4), 1.0);
  EXPECT_EQ(rate({linear}, 5), 0.1);
  EXPECT_EQ(rate({linear}, 14), 0.7);
  EXPECT_EQ(rate({linear}, 15), 0.7);
  EXPECT_EQ(rate({linear}, 1999), 0.7);

  const ScheduleOptions constant = {.type = "Constant", .begin = 5, .end = 15, .factor = 0.5};
  EXPECT_EQ(rate({constant}, 4), 1.0);
  EXPECT_EQ(rate({constant}, 13), 0.5);
  EXPECT_EQ(rate({constant}, 14), 1.0);

  const ScheduleOptions polynomial = {.type = "Polynomial", .end = 11, .power = 2, .eta_min = 0.25};
  EXPECT_EQ(rate({polynomial}, 0), 1.0);
  EXPECT_EQ(rate({polynomial}, 5), 0.25 + 0.75 * 0.25);
  EXPECT_EQ(rate({polynomial}, 10), 0.25);
  EXPECT_EQ(rate({polynomial}, 11), 0.25);

  const ScheduleOptions cosine = {.type = "Cosine", .end = 10, .eta_min = 0.25};
  EXPECT_EQ(rate({cosine}, 0), 1.0);
  EXPECT_NEAR(rate({cosine}, 5), 0.625, 1e-15);
  EXPECT_GT(rate({cosine}, 9), 0.25);
  EXPECT_EQ(rate({cosine}, 10), rate({cosine}, 9));

  const ScheduleOptions wsd = {.type = "WSD", .end = 20, .eta_min = 0.25, .wsd = {.warmup_steps = 4, .decay_steps = 6}};
  EXPECT_EQ(rate({wsd}, 0), 0.25);
  EXPECT_EQ(rate({wsd}, 3), 1.0);
  EXPECT_EQ(rate({wsd}, 13), 1.0);
  EXPECT_LT(rate({wsd}, 14), 1.0);
  EXPECT_EQ(rate({wsd}, 19), 0.25);
  EXPECT_EQ(rate({wsd}, 20), 0.25);
}

TEST(Schedule, TakesTheGroupsOwnValueAsThePeakOfACycle) {
  const ScheduleOptions cycle = {.type = "OneCycle", .end = 101, .one_cycle = {.div_factor = 10}};
  const ScheduleCurve curve({cycle}, "lr", {});
  for (const double initial : {0.1, 2.0}) {
    EXPECT_DOUBLE_EQ(curve.at(0, initial), initial / 10);
    EXPECT_NEAR(curve.at(29, initial), initial, 1e-3);
    EXPECT_NEAR(curve.at(100, initial), initial * 1e-5, 1e-16);
    EXPECT_EQ(curve.at(500, initial), curve.at(100, initial));
  }
}

TEST(Schedule, TakesTheEndOfTheRunAsItsOwn) {
  EXPECT_EQ(rate({{.type = "Linear", .start_factor = 0.5}}, 99, 100), 1.0);
  EXPECT_LT(rate({{.type = "Linear", .start_factor = 0.5}}, 98, 100), 1.0);
  EXPECT_EQ(rate({{.type = "Polynomial"}}, 99, 100), 0.0);
  EXPECT_EQ(rate({{.type = "WSD", .wsd = {.decay_ratio = 0.5}}}, 99, 100), 0.0);
  EXPECT_EQ(rate({{.type = "Constant", .factor = 0.5}}, 99, 100), 0.5);  // never undone
  // A short trial of a long configuration: what would begin after the end does nothing.
  EXPECT_EQ(rate({{.type = "Cosine", .begin = 100}}, 100, 50), 1.0);
  EXPECT_EQ(rate({{.type = "Step", .step_size = 10}}, 25, 0), 0.1 * 0.1);
}

TEST(Schedule, IsDefinedForAnIntervalOfOneStep) {
  for (const int64_t step : {3, 4}) {
    EXPECT_EQ(rate({{.type = "Linear", .begin = 3, .end = 4, .end_factor = 0.5}}, step), 0.5);
    EXPECT_EQ(rate({{.type = "Constant", .begin = 3, .end = 4, .factor = 0.5}}, step), 1.0);
    EXPECT_EQ(rate({{.type = "Cosine", .begin = 3, .end = 4}}, step), 1.0);
    EXPECT_EQ(rate({{.type = "Polynomial", .begin = 3, .end = 4}}, step), 1.0);
    EXPECT_EQ(rate({{.type = "CosineRestart", .begin = 3, .periods = {1}}}, step), 1.0);
    EXPECT_EQ(rate({{.type = "WSD", .begin = 3, .end = 4, .wsd = {.decay_steps = 1}}}, step), 0.0);
    EXPECT_TRUE(std::isfinite(rate({{.type = "OneCycle", .begin = 3, .end = 4}}, step)));
  }
}

TEST(Schedule, DecaysByGammaPerEpochWhenConverted) {
  ScheduleOptions exponential = {.type = "Exponential", .begin = 2, .by_epoch = true, .gamma = 0.5};
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
  const auto bad = [](const ScheduleOptions& options, const std::vector<std::string>& parts) {
    expect_error<ConfigError>([&] { options.validate(); }, parts);
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  bad({.type = "Cosin"}, {"type 'Cosin'", "Cosine", "WSD"});
  bad({.param_name = ""}, {"param_name"});
  bad({.begin = -1}, {"begin is -1", ">= 0"});
  bad({.begin = 5, .end = 5}, {"end 5", "after begin"});
  bad({.end = -2}, {"end is -2", "-1"});
  bad({.factor = -0.5}, {"factor is -0.5", ">= 0"});
  bad({.type = "Linear", .start_factor = nan}, {"start_factor is nan"});
  bad({.type = "Linear", .end_factor = -1}, {"end_factor is -1"});
  bad({.type = "Step"}, {"step_size is 0", "at least 1"});
  bad({.type = "Step", .step_size = 1, .gamma = 0}, {"gamma is 0", "> 0"});
  bad({.type = "MultiStep"}, {"milestones ()", "ascending"});
  bad({.type = "MultiStep", .milestones = {3, 2}}, {"milestones (3, 2)", "ascending"});
  bad({.type = "MultiStep", .milestones = {0, 2}}, {"milestones", ">= 1"});
  bad({.type = "Exponential", .gamma = -0.9}, {"gamma is -0.9", "> 0"});
  bad({.type = "Cosine", .T_max = -3}, {"T_max is -3", ">= 0"});
  bad({.type = "Cosine", .eta_min = -1}, {"eta_min is -1"});
  bad({.type = "Cosine", .eta_min_ratio = 1.5}, {"eta_min_ratio is 1.5", "[0, 1]"});
  bad({.type = "Cosine", .eta_min = 0.1, .eta_min_ratio = 0.5}, {"eta_min 0.1", "not both"});
  bad({.type = "Polynomial", .power = 0}, {"power is 0", "> 0"});
  bad({.type = "CosineRestart"}, {"periods ()", "at least 1"});
  bad({.type = "CosineRestart", .periods = {5, 0}}, {"periods (5, 0)", "at least 1"});
  bad({.type = "CosineRestart", .periods = {5, 5}, .restart_weights = {1}}, {"restart_weights (1)", "each of periods"});
  bad({.type = "CosineRestart", .periods = {5}, .restart_weights = {-1}}, {"restart_weights[0] is -1", "> 0"});
  EXPECT_NO_THROW(ScheduleOptions{.step_size = -5}.validate());  // not a field of Constant
}

TEST(Schedule, NamesFieldAndRangeOfABadCycleDecayOrPlateau) {
  const auto cycle = [](const OneCycleOptions& options, const std::vector<std::string>& parts) {
    expect_error<ConfigError>([&] { ScheduleOptions{.type = "OneCycle", .one_cycle = options}.validate(); }, parts);
  };
  cycle({.eta_max = -1}, {"eta_max is -1", ">= 0"});
  cycle({.total_steps = -1}, {"total_steps is -1", ">= 0"});
  cycle({.pct_start = 1.5}, {"pct_start is 1.5", "[0, 1]"});
  cycle({.anneal_strategy = "sin"}, {"anneal_strategy is 'sin'", "cos, linear"});
  cycle({.div_factor = 0}, {"div_factor is 0", "> 0"});
  cycle({.final_div_factor = -2}, {"final_div_factor is -2", "> 0"});
  cycle({.max_momentum = 1}, {"max_momentum is 1", "[0, 1)"});

  const auto wsd = [](const WsdOptions& options, const std::vector<std::string>& parts) {
    expect_error<ConfigError>([&] { ScheduleOptions{.type = "WSD", .wsd = options}.validate(); }, parts);
  };
  wsd({}, {"decay_steps 0", "decay_ratio"});
  wsd({.decay_steps = 5, .decay_ratio = 0.1}, {"decay_steps 5", "either"});
  wsd({.warmup_steps = 5, .warmup_ratio = 0.1, .decay_steps = 1}, {"warmup_ratio 0.1", "not both"});
  wsd({.warmup_ratio = 0.6, .decay_ratio = 0.6}, {"warmup_ratio + decay_ratio 1.2", "at most 1"});
  wsd({.decay_ratio = -0.1}, {"decay_ratio is -0.1", "[0, 1]"});
  wsd({.decay_steps = 5, .decay_type = "exp"}, {"decay_type is 'exp'", "linear, sqrt, cosine"});

  const auto plateau = [](const PlateauOptions& options, const std::vector<std::string>& parts) {
    expect_error<ConfigError>([&] { ScheduleOptions{.type = "ReduceOnPlateau", .plateau = options}.validate(); },
                              parts);
  };
  plateau({.monitor = ""}, {"monitor"});
  plateau({.rule = "min"}, {"rule is 'min'", "less, greater"});
  plateau({.factor = 1}, {"factor is 1", "(0, 1)"});
  plateau({.patience = -1}, {"patience is -1", ">= 0"});
  plateau({.threshold = -1}, {"threshold is -1", ">= 0"});
  plateau({.threshold_rule = "relative"}, {"threshold_rule is 'relative'", "rel, abs"});
  plateau({.cooldown = -1}, {"cooldown is -1", ">= 0"});
  plateau({.min_value = -1}, {"min_value is -1", ">= 0"});
  plateau({.eps = -1}, {"eps is -1", ">= 0"});
}

}  // namespace
}  // namespace duet
