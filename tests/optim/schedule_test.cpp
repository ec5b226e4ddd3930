#include <duet/optim/schedule.h>

#include <duet/core/error.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>

#include "../support/expect_error.h"

namespace duet {
namespace {

constexpr int64_t kRunLength = 2000;

struct Golden {
  const char* name;
  int64_t update;
  double rate;
};

const Golden kGolden[] = {
#include "schedule_golden.inc"
};

struct Case {
  double initial;
  std::vector<ScheduleOptions> schedules;
};

// As in make_schedule_golden.py.
const std::map<std::string, Case> kCases = {
    {"linear", {0.1, {{.type = "Linear", .end = 500}}}},
    {"constant", {0.1, {{.type = "Constant", .begin = 50, .end = 700, .factor = 1.0 / 3}}}},
    {"step", {0.3, {{.type = "Step", .step_size = 300}}}},
    {"multi_step",
     {0.3, {{.type = "MultiStep", .begin = 100, .end = 1800, .milestones = {300, 900, 1750}, .gamma = 0.5}}}},
    {"cosine", {0.1, {{.type = "Cosine", .eta_min = 0.001}}}},
    {"polynomial", {0.1, {{.type = "Polynomial", .eta_min = 0.0001, .power = 0.9}}}},
    {"linear_cosine",
     {0.001, {{.type = "Linear", .end = 100, .start_factor = 0.01}, {.type = "Cosine", .begin = 100}}}},
    {"half_linear_cosine",
     {0.001,
      {{.type = "Linear", .end = 100, .start_factor = 0.01, .end_factor = 0.5},
       {.type = "Cosine", .begin = 100, .end = 1500, .eta_min = 1e-5}}}},
    {"linear_multi_step", {0.02, {{.type = "Linear", .end = 500}, {.type = "MultiStep", .milestones = {1200, 1700}}}}},
    {"cosine_step",
     {0.1, {{.type = "Cosine", .end = 900, .eta_min = 0.01}, {.type = "Step", .begin = 1000, .step_size = 400}}}},
};

double rate(const std::vector<ScheduleOptions>& schedules, int64_t update, int64_t run_length = kRunLength) {
  return scheduled_lr(schedules, update, 1.0, run_length);
}

TEST(Schedule, EqualsPyTorch) {
  std::map<std::string, int> seen;
  for (const Golden& golden : kGolden) {
    const Case& test = kCases.at(golden.name);
    validate_schedules(test.schedules, kRunLength);
    EXPECT_NEAR(scheduled_lr(test.schedules, golden.update, test.initial, kRunLength), golden.rate, 1e-12)
        << golden.name << " at " << golden.update;
    ++seen[golden.name];
  }
  EXPECT_EQ(seen.size(), kCases.size());
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

  const ScheduleOptions polynomial = {.type = "Polynomial", .end = 11, .eta_min = 0.25, .power = 2};
  EXPECT_EQ(rate({polynomial}, 0), 1.0);
  EXPECT_EQ(rate({polynomial}, 5), 0.25 + 0.75 * 0.25);
  EXPECT_EQ(rate({polynomial}, 10), 0.25);
  EXPECT_EQ(rate({polynomial}, 11), 0.25);

  const ScheduleOptions cosine = {.type = "Cosine", .end = 10, .eta_min = 0.25};
  EXPECT_EQ(rate({cosine}, 0), 1.0);
  EXPECT_NEAR(rate({cosine}, 5), 0.625, 1e-15);
  EXPECT_GT(rate({cosine}, 9), 0.25);
  EXPECT_EQ(rate({cosine}, 10), rate({cosine}, 9));
}

TEST(Schedule, TakesTheEndOfTheRunAsItsOwn) {
  EXPECT_EQ(rate({{.type = "Linear", .start_factor = 0.5}}, 99, 100), 1.0);
  EXPECT_LT(rate({{.type = "Linear", .start_factor = 0.5}}, 98, 100), 1.0);
  EXPECT_EQ(rate({{.type = "Polynomial"}}, 99, 100), 0.0);
  EXPECT_EQ(rate({{.type = "Constant", .factor = 0.5}}, 99, 100), 0.5);  // never undone
  // A short trial of a long configuration: what would begin after the end does nothing.
  EXPECT_EQ(rate({{.type = "Cosine", .begin = 100}}, 100, 50), 1.0);
  EXPECT_EQ(rate({{.type = "Step", .step_size = 10}}, 25, 0), 0.1 * 0.1);
}

TEST(Schedule, IsDefinedForAnIntervalOfOneUpdate) {
  for (const int64_t update : {3, 4}) {
    EXPECT_EQ(rate({{.type = "Linear", .begin = 3, .end = 4, .end_factor = 0.5}}, update), 0.5);
    EXPECT_EQ(rate({{.type = "Constant", .begin = 3, .end = 4, .factor = 0.5}}, update), 1.0);
    EXPECT_EQ(rate({{.type = "Cosine", .begin = 3, .end = 4}}, update), 1.0);
    EXPECT_EQ(rate({{.type = "Polynomial", .begin = 3, .end = 4}}, update), 1.0);
  }
}

TEST(Schedule, ChainsByBeginWhateverTheListsOrder) {
  const Case& test = kCases.at("half_linear_cosine");
  const std::vector<ScheduleOptions> turned(test.schedules.rbegin(), test.schedules.rend());
  for (int64_t update = 0; update < kRunLength; ++update) {
    EXPECT_EQ(rate(turned, update), rate(test.schedules, update));
  }
}

TEST(Schedule, NamesFieldAndRangeOfABadValue) {
  const auto bad = [](const ScheduleOptions& options, const std::vector<std::string>& parts) {
    expect_error<ConfigError>([&] { options.validate(); }, parts);
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  bad({.type = "Cosin"}, {"type 'Cosin'", "Cosine"});
  bad({.begin = -1}, {"begin -1", ">= 0"});
  bad({.begin = 5, .end = 5}, {"end 5", "after begin"});
  bad({.end = -2}, {"end -2", "-1"});
  bad({.factor = -0.5}, {"factor -0.5", ">= 0"});
  bad({.type = "Linear", .start_factor = nan}, {"start_factor nan"});
  bad({.type = "Linear", .end_factor = -1}, {"end_factor -1"});
  bad({.type = "Step"}, {"step_size 0", "at least 1"});
  bad({.type = "Step", .step_size = 1, .gamma = 0}, {"gamma 0", "> 0"});
  bad({.type = "MultiStep"}, {"milestones ()", "ascending"});
  bad({.type = "MultiStep", .milestones = {3, 2}}, {"milestones (3, 2)", "ascending"});
  bad({.type = "MultiStep", .milestones = {0, 2}}, {"milestones", ">= 1"});
  bad({.type = "Cosine", .eta_min = -1}, {"eta_min -1"});
  bad({.type = "Polynomial", .power = 0}, {"power 0", "> 0"});
  EXPECT_NO_THROW(ScheduleOptions{.step_size = -5}.validate());  // not a field of Constant
}

TEST(Schedule, RefusesWhatDoesNotFitTheRun) {
  const std::vector<ScheduleOptions> endless = {{.type = "Cosine"}};
  EXPECT_NO_THROW(validate_schedules(endless, 100));
  expect_error<ConfigError>([&] { validate_schedules(endless, 0); }, {"Cosine without an end", "max_updates"});
  const std::vector<ScheduleOptions> overlapping = {{.type = "Linear", .end = 100}, {.type = "Cosine", .begin = 99}};
  expect_error<ConfigError>([&] { validate_schedules(overlapping, 200); },
                            {"Linear from update 0", "Cosine from update 99"});
  EXPECT_NO_THROW(validate_schedules({{.type = "Linear", .end = 100}, {.type = "Cosine", .begin = 100}}, 200));
  EXPECT_NO_THROW(validate_schedules({{.type = "Linear", .end = 100}, {.type = "Step", .step_size = 5}}, 0));
}

}  // namespace
}  // namespace duet
