#include "optim/schedules/schedule_curve.h"
#include <cmath>
#include <gtest/gtest.h>
#include "base/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/fakes.h"

namespace duet {
namespace {

using Schedules = std::vector<ScheduleOptions>;

void refused(const Schedules& schedules, const ScheduleRun& run, const std::vector<std::string>& parts) {
  expect_error<ConfigError>([&] { validate_schedules(schedules, run); }, parts);
}

TEST(ScheduleCurve, ChainsByBeginWhateverTheListsOrder) {
  const Schedules chain = {{.type = "Linear", .end = 100, .end_factor = 0.5}, {.type = "Cosine", .begin = 100}};
  const ScheduleCurve straight(chain, "lr", {2000}), turned({chain[1], chain[0]}, "lr", {2000});
  for (int64_t step = 0; step < 2000; ++step) EXPECT_EQ(turned.at(step, 1), straight.at(step, 1));
}

TEST(ScheduleCurve, TakesOnlyTheSchedulesOfItsNumber) {
  const Schedules schedules = {{.factor = 0.5}, {.param_name = "momentum", .factor = 0.25}};
  EXPECT_EQ(ScheduleCurve(schedules, "lr", {}).at(3, 1), 0.5);
  EXPECT_EQ(ScheduleCurve(schedules, "momentum", {}).at(3, 1), 0.25);
  EXPECT_EQ(ScheduleCurve(schedules, "weight_decay", {}).at(3, 1), 1);
}

TEST(ScheduleCurve, HandsTheReducedValueOnToWhatBeginsLater) {
  const Schedules schedules = {{.type = "ReduceOnPlateau", .end = 10}, {.type = "Polynomial", .begin = 10, .end = 21}};
  const ScheduleCurve curve(schedules, "lr", {});
  EXPECT_EQ(curve.at(9, 1.0), 1.0);
  EXPECT_EQ(curve.at(9, 1.0, {0.5}), 0.5);
  EXPECT_EQ(curve.at(10, 1.0, {0.5}), 0.5);
  EXPECT_EQ(curve.at(15, 1.0, {0.5}), 0.25);
}

TEST(ScheduleCurve, RefusesAnEndThatNobodyKnows) {
  for (const char* type : {"Linear", "Polynomial", "Cosine", "OneCycle"}) {
    EXPECT_NO_THROW(validate_schedules({{.type = type}}, {100}));
    refused({{.type = type}}, {}, {std::string(type) + " without an end", "max_steps"});
    EXPECT_NO_THROW(validate_schedules({{.type = type, .end = 10}}, {}));
  }
  EXPECT_NO_THROW(validate_schedules({{.type = "Cosine", .T_max = 10}}, {}));
  EXPECT_NO_THROW(validate_schedules({{.type = "OneCycle", .one_cycle = {.total_steps = 10}}}, {}));
  EXPECT_NO_THROW(validate_schedules({{.type = "CosineRestart", .periods = {10}}}, {}));
}

TEST(ScheduleCurve, RefusesEpochsOfUnknownLength) {
  const Schedules schedules = {{.type = "Step", .by_epoch = true, .step_size = 2}};
  EXPECT_NO_THROW(validate_schedules(schedules, {0, 10}));
  refused(schedules, {100, 0}, {"Step with by_epoch", "by_epoch: false"});
}

TEST(ScheduleCurve, RefusesAnAnnealingThatDoesNotGovernAlone) {
  refused({{.type = "Linear", .end = 100}, {.type = "Cosine", .begin = 99}}, {200},
          {"Linear from step 0", "Cosine from step 99"});
  refused({{.type = "WSD", .wsd = {.decay_ratio = 0.1}}, {.type = "Step", .begin = 50, .step_size = 5}}, {200},
          {"WSD from step 0", "Step from step 50", "expected WSD"});
  refused({{.type = "ReduceOnPlateau"}, {.type = "CosineRestart", .begin = 7, .periods = {10}}}, {200},
          {"ReduceOnPlateau from step 0", "CosineRestart from step 7"});
  // Epochs and steps are compared as steps.
  refused({{.type = "Linear", .end = 101}, {.type = "Cosine", .begin = 2, .by_epoch = true}}, {200, 50},
          {"Cosine from step 100"});
  refused({{.type = "OneCycle", .one_cycle = {.cycle_momentum = true}}, {.param_name = "momentum", .factor = 0.5}},
          {200}, {"OneCycle", "Constant", "momentum"});

  EXPECT_NO_THROW(validate_schedules({{.type = "Linear", .end = 100}, {.type = "Cosine", .begin = 100}}, {200}));
  EXPECT_NO_THROW(validate_schedules({{.type = "Linear", .end = 100}, {.type = "Step", .step_size = 5}}, {}));
  EXPECT_NO_THROW(validate_schedules({{.type = "Cosine"}, {.type = "Cosine", .param_name = "momentum"}}, {200}));
  EXPECT_NO_THROW(validate_schedules({{.type = "Linear", .end = 100}, {.type = "ReduceOnPlateau"}}, {}));
}

TEST(ScheduleCurve, RefusesPartsThatDoNotFitIntoTheirWhole) {
  const Schedules schedules = {{.type = "WSD", .wsd = {.warmup_steps = 60, .decay_steps = 50}}};
  EXPECT_NO_THROW(validate_schedules(schedules, {110}));
  refused(schedules, {109}, {"WSD of 109", "60 of warm-up", "50 of decay"});
}

TEST(ScheduleCurve, NamesTheGapsThatSchedulesLeave) {
  const auto gaps = [](const Schedules& schedules) { return schedule_gaps(schedules, {1000, 50}); };
  const auto found = gaps({{.type = "Cosine", .begin = 120}, {.type = "Linear", .end = 100}});
  ASSERT_EQ(found.size(), 1U);
  for (const char* part : {"Linear from step 0", "100", "Cosine from step 120", "lr"}) {
    EXPECT_NE(found[0].find(part), std::string::npos) << part << " is not in " << found[0];
  }
  EXPECT_EQ(gaps({{.type = "Cosine", .end = 10},
                  {.type = "Linear", .begin = 10, .end = 12},
                  {.type = "WSD", .begin = 1, .by_epoch = true, .wsd = {.decay_ratio = 0.5}}})
                .size(),
            1U);
  EXPECT_TRUE(gaps({{.type = "Linear", .end = 100}, {.type = "Cosine", .begin = 2, .by_epoch = true}}).empty());
  EXPECT_TRUE(gaps({{.type = "Linear", .end = 100}, {.type = "Step", .begin = 500, .step_size = 5}}).empty());
  EXPECT_TRUE(gaps({{.type = "Cosine", .begin = 100}}).empty());
  EXPECT_TRUE(gaps({{.end = 3}, {.type = "Cosine", .param_name = "momentum", .begin = 100}}).empty());
}

TEST(ScheduleCurve, FindsTheNumbersThatAParamNameStandsFor) {
  FakeHyperParameters numbers({0.1, 0.2});
  const Schedules momentum = {{.param_name = "momentum"}};
  expect_error<ConfigError>([&] { scheduled_numbers(momentum, numbers); }, {"schedule of momentum", "lr"});

  numbers.give(0, "beta1", 0.9);
  using Names = std::map<std::string, std::string>;
  EXPECT_EQ(scheduled_numbers(momentum, numbers), (Names{{"beta1", "momentum"}}));
  EXPECT_EQ(scheduled_numbers({{.type = "OneCycle", .one_cycle = {.cycle_momentum = true}}}, numbers),
            (Names{{"beta1", "momentum"}, {"lr", "lr"}}));
  numbers.give(1, "momentum", 0.8);
  EXPECT_EQ(scheduled_numbers(momentum, numbers), (Names{{"beta1", "momentum"}, {"momentum", "momentum"}}));
  expect_error<ConfigError>([&] { scheduled_numbers({{.param_name = "momentum"}, {.param_name = "beta1"}}, numbers); },
                            {"momentum", "beta1", "same number"});
}

TEST(ScheduleCurve, ListsTheValuesOfEveryStepAndGroup) {
  FakeHyperParameters numbers({0.1, 0.2});
  numbers.give(1, "momentum", 0.8);
  const Schedules schedules = {{.type = "Linear", .end = 11, .start_factor = 0},
                               {.param_name = "momentum", .factor = 0.5}};
  const auto table = schedule_table(schedules, numbers, {100}, 20);
  ASSERT_EQ(table.size(), 2U);
  ASSERT_EQ(table.at("lr").size(), 20U);
  for (std::size_t step = 0; step < 20; ++step) {
    const double share = static_cast<double>(std::min<std::size_t>(step, 10)) / 10;
    EXPECT_NEAR(table.at("lr")[step][0], 0.1 * share, 1e-15);
    EXPECT_NEAR(table.at("lr")[step][1], 0.2 * share, 1e-15);
    EXPECT_TRUE(std::isnan(table.at("momentum")[step][0]));
    EXPECT_EQ(table.at("momentum")[step][1], 0.4);
  }
}

}  // namespace
}  // namespace duet
