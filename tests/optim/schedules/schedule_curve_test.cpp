#include <cmath>
#include <gtest/gtest.h>
#include "base/error.h"
#include "optim/schedules/detail/schedule_rules.h"
#include "tests/support/expect_error.h"
#include "tests/support/fakes.h"

namespace duet {
namespace {

using Schedules = std::vector<Schedule>;

void refused(const Schedules& schedules, const ScheduleRun& run, const std::vector<std::string>& parts) {
  expect_error<ConfigError>([&] { validate_schedules(schedules, run); }, parts);
}

TEST(ScheduleCurve, ChainsByBeginWhateverTheListsOrder) {
  const Schedules chain = {Linear{.end_factor = 0.5, .end = 100}, Cosine{.begin = 100}};
  const ScheduleCurve straight(chain, "lr", {2000}), turned({chain[1], chain[0]}, "lr", {2000});
  for (int64_t step = 0; step < 2000; ++step) EXPECT_EQ(turned.at(step, 1), straight.at(step, 1));
}

TEST(ScheduleCurve, TakesAFormulaOfSomebodysOwn) {
  const auto formula = [](const ScheduleStep& at) {
    const double share = static_cast<double>(at.s) / static_cast<double>(at.length - 1);
    return at.taken_over * (1.0 * (1 - share) + 0.1 * share);
  };
  const CustomSchedule own{.type = "OwnLinear", .formula = formula, .begin = 3, .end = 9};
  const Linear linear{.start_factor = 1.0, .end_factor = 0.1, .begin = 3, .end = 9};
  const Constant constant{.factor = 0.5, .end = 3};
  const ScheduleCurve with_own({constant, own}, "lr", {20}), built_in({constant, linear}, "lr", {20});
  for (int64_t step = 0; step < 20; ++step) EXPECT_EQ(with_own.at(step, 0.3), built_in.at(step, 0.3)) << step;
}

TEST(ScheduleCurve, TakesOnlyTheSchedulesOfItsNumber) {
  const Schedules schedules = {Constant{.factor = 0.5}, Constant{.factor = 0.25, .param_name = "momentum"}};
  EXPECT_EQ(ScheduleCurve(schedules, "lr", {}).at(3, 1), 0.5);
  EXPECT_EQ(ScheduleCurve(schedules, "momentum", {}).at(3, 1), 0.25);
  EXPECT_EQ(ScheduleCurve(schedules, "weight_decay", {}).at(3, 1), 1);
}

TEST(ScheduleCurve, HandsTheReducedValueOnToWhatBeginsLater) {
  const Schedules schedules = {ReduceOnPlateau{.end = 10}, Polynomial{.begin = 10, .end = 21}};
  const ScheduleCurve curve(schedules, "lr", {});
  EXPECT_EQ(curve.at(9, 1.0), 1.0);
  EXPECT_EQ(curve.at(9, 1.0, {0.5}), 0.5);
  EXPECT_EQ(curve.at(10, 1.0, {0.5}), 0.5);
  EXPECT_EQ(curve.at(15, 1.0, {0.5}), 0.25);
}

TEST(ScheduleCurve, RefusesAnEndThatNobodyKnows) {
  const auto check = [](auto schedule) {
    EXPECT_NO_THROW(validate_schedules({schedule}, {100}));
    refused({schedule}, {}, {type_of(schedule) + " without an end", "max_steps"});
    schedule.end = 10;
    EXPECT_NO_THROW(validate_schedules({schedule}, {}));
  };
  check(Linear{});
  check(Polynomial{});
  check(Cosine{});
  check(OneCycle{});
  EXPECT_NO_THROW(validate_schedules({Cosine{.T_max = 10}}, {}));
  EXPECT_NO_THROW(validate_schedules({OneCycle{.total_steps = 10}}, {}));
  EXPECT_NO_THROW(validate_schedules({CosineRestart{.periods = {10}}}, {}));
}

TEST(ScheduleCurve, RefusesEpochsOfUnknownLength) {
  const Schedules schedules = {Step{.step_size = 2, .by_epoch = true}};
  EXPECT_NO_THROW(validate_schedules(schedules, {0, 10}));
  refused(schedules, {100, 0}, {"Step with by_epoch", "by_epoch: false"});
}

TEST(ScheduleCurve, RefusesAnAnnealingThatDoesNotGovernAlone) {
  refused({Linear{.end = 100}, Cosine{.begin = 99}}, {200}, {"Linear from step 0", "Cosine from step 99"});
  refused({WSD{.decay_ratio = 0.1}, Step{.step_size = 5, .begin = 50}}, {200},
          {"WSD from step 0", "Step from step 50", "expected WSD"});
  refused({ReduceOnPlateau{}, CosineRestart{.periods = {10}, .begin = 7}}, {200},
          {"ReduceOnPlateau from step 0", "CosineRestart from step 7"});
  // Epochs and steps are compared as steps.
  refused({Linear{.end = 101}, Cosine{.begin = 2, .by_epoch = true}}, {200, 50}, {"Cosine from step 100"});
  refused({OneCycle{.cycle_momentum = true}, Constant{.factor = 0.5, .param_name = "momentum"}}, {200},
          {"OneCycle", "Constant", "momentum"});

  EXPECT_NO_THROW(validate_schedules({Linear{.end = 100}, Cosine{.begin = 100}}, {200}));
  EXPECT_NO_THROW(validate_schedules({Linear{.end = 100}, Step{.step_size = 5}}, {}));
  EXPECT_NO_THROW(validate_schedules({Cosine{}, Cosine{.param_name = "momentum"}}, {200}));
  EXPECT_NO_THROW(validate_schedules({Linear{.end = 100}, ReduceOnPlateau{}}, {}));
}

TEST(ScheduleCurve, RefusesPartsThatDoNotFitIntoTheirWhole) {
  const Schedules schedules = {WSD{.warmup_steps = 60, .decay_steps = 50}};
  EXPECT_NO_THROW(validate_schedules(schedules, {110}));
  refused(schedules, {109}, {"WSD of 109", "60 of warm-up", "50 of decay"});
}

TEST(ScheduleCurve, NamesTheSchedulesThatARunEndsBefore) {
  const Schedules schedules = {Linear{.end = 100}, Cosine{.begin = 2000},
                               Step{.step_size = 5, .begin = 20, .end = 30, .by_epoch = true}};
  const auto found = schedule_gaps(schedules, {1000, 50});
  ASSERT_EQ(found.size(), 2U);
  expect_contains(found[0], {"Cosine from step 2000 of lr", "no effect", "ends at step 1000"});
  expect_contains(found[1], {"Step from step 1000"});
  EXPECT_TRUE(schedule_gaps({Linear{.begin = 998}}, {1000, 50}).empty());
  const auto short_ones =
      schedule_gaps({Linear{.end = 1, .by_epoch = true}, Constant{.begin = 5, .end = 6}}, {1000, 50});
  ASSERT_EQ(short_ones.size(), 2U);
  expect_contains(short_ones[0], {"Linear from step 0 of lr", "final value from the first", "one epoch"});
  expect_contains(short_ones[1], {"Constant from step 5", "one step", "end one later"});
  EXPECT_TRUE(schedule_gaps({Step{.step_size = 5, .begin = 2000}}, {}).empty());  // a run without a known end
}

TEST(ScheduleCurve, FindsTheNumbersThatAParamNameStandsFor) {
  FakeHyperParameters numbers({0.1, 0.2});
  const Schedules momentum = {Constant{.param_name = "momentum"}};
  expect_error<ConfigError>([&] { scheduled_numbers(momentum, numbers); }, {"schedule of momentum", "lr"});

  numbers.give(0, "beta1", 0.9);
  using Names = std::map<std::string, std::string>;
  EXPECT_EQ(scheduled_numbers(momentum, numbers), (Names{{"beta1", "momentum"}}));
  EXPECT_EQ(scheduled_numbers({OneCycle{.cycle_momentum = true}}, numbers),
            (Names{{"beta1", "momentum"}, {"lr", "lr"}}));
  numbers.give(1, "momentum", 0.8);
  EXPECT_EQ(scheduled_numbers(momentum, numbers), (Names{{"beta1", "momentum"}, {"momentum", "momentum"}}));
  expect_error<ConfigError>(
      [&] { scheduled_numbers({Constant{.param_name = "momentum"}, Constant{.param_name = "beta1"}}, numbers); },
      {"momentum", "beta1", "same number"});
}

TEST(ScheduleCurve, ListsTheValuesOfEveryStepAndGroup) {
  FakeHyperParameters numbers({0.1, 0.2});
  numbers.give(1, "momentum", 0.8);
  const Schedules schedules = {Linear{.start_factor = 0, .end = 11}, Constant{.factor = 0.5, .param_name = "momentum"}};
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

// Schedules that count epochs beside those that count steps.
template <class T>
Schedule in_epochs(T schedule, bool converted) {
  schedule.by_epoch = true;
  schedule.convert_to_iter_based = converted;
  return schedule;
}

// One that counts epochs has at each of their steps the value that it would have if they were steps.
TEST(ScheduleEpochs, CountAsTheirStepsDo) {
  constexpr int64_t kEpochs = 40, kSteps = 50;  // of each
  const auto check = [](const auto& schedule) {
    const ScheduleCurve epochs({in_epochs(schedule, false)}, "lr", {kEpochs * kSteps, kSteps});
    const ScheduleCurve plain({schedule}, "lr", {kEpochs});
    for (int64_t step = 0; step < kEpochs * kSteps; ++step) {
      ASSERT_EQ(epochs.at(step, 0.1), plain.at(step / kSteps, 0.1)) << type_of(Schedule(schedule)) << " " << step;
    }
  };
  check(Linear{.start_factor = 0.1, .end = 5});
  check(Cosine{.eta_min = 1e-3, .begin = 5, .end = 38});
  check(MultiStep{.milestones = {12, 30}});
  check(Exponential{.gamma = 0.97});
  check(CosineRestart{.periods = {10, 20}, .restart_weights = {1, 0.5}, .begin = 2});
  check(OneCycle{.eta_max = 0.4});
}

// Converted, whatever is counted in epochs is so many times the steps of one.
TEST(ScheduleEpochs, ConvertedAreThoseOfAsManySteps) {
  constexpr int64_t kSteps = 50;  // of an epoch
  const auto check = [](const auto& schedule, const Schedule& expected) {
    const ScheduleRun run = {40 * kSteps, kSteps};
    const ScheduleCurve converted({in_epochs(schedule, true)}, "lr", run), plain({expected}, "lr", run);
    for (int64_t step = 0; step < run.steps; ++step) {
      ASSERT_EQ(converted.at(step, 0.1), plain.at(step, 0.1)) << type_of(expected) << " at step " << step;
    }
  };
  check(Linear{.start_factor = 0.1, .end = 3}, Linear{.start_factor = 0.1, .end = 150});
  check(Cosine{.T_max = 30, .begin = 3, .end = 40}, Cosine{.T_max = 1500, .begin = 150, .end = 2000});
  check(Step{.step_size = 7, .gamma = 0.6}, Step{.step_size = 350, .gamma = 0.6});
  check(MultiStep{.milestones = {3, 20}, .begin = 2}, MultiStep{.milestones = {150, 1000}, .begin = 100});
  check(Constant{.factor = 0.5, .begin = 1, .end = 9}, Constant{.factor = 0.5, .begin = 50, .end = 450});
  check(Polynomial{.power = 2, .begin = 2, .end = 40}, Polynomial{.power = 2, .begin = 100, .end = 2000});
  check(CosineRestart{.periods = {10, 30}, .restart_weights = {1, 0.3}, .eta_min = 0.01},
        CosineRestart{.periods = {500, 1500}, .restart_weights = {1, 0.3}, .eta_min = 0.01});
  check(OneCycle{.eta_max = 0.4, .total_steps = 40, .three_phase = true},
        OneCycle{.eta_max = 0.4, .total_steps = 2000, .three_phase = true});
}

}  // namespace
}  // namespace duet
