#include <gtest/gtest.h>
#include "optim/schedules/detail/schedule_rules.h"

// Schedules that count epochs beside those that count steps.

namespace duet {
namespace {

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
