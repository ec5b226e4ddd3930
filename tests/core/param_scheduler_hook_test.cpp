#include "core/detail/param_scheduler_hook.h"
#include <cmath>
#include <gtest/gtest.h>
#include "base/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/fakes.h"

namespace duet {
namespace {

using Schedules = std::vector<Schedule>;

const Schedules kSchedules = {Linear{.start_factor = 0.1, .end = 5}, Cosine{.begin = 5}};

// The rates that steps up to `to` - 1 ran with, group by group.
std::vector<double> rates(FakeRun& run, ParamSchedulerHook& hook, int64_t to) {
  std::vector<double> seen;
  while (run.context.progress.step < to) {
    run.step(hook);
    for (std::size_t group = 0; group < run.hyper_parameters.group_count(); ++group) {
      seen.push_back(run.hyper_parameters.get(group, "lr"));
    }
  }
  return seen;
}

double next_rate(const FakeRun& run) { return run.hyper_parameters.curves.at("lr")(0, run.hyper_parameters.applied()); }

TEST(ParamSchedulerHook, FollowsTheSameCurveAfterAResume) {
  FakeRun whole({0.1, 0.5}), first({0.1, 0.5}), second({0.7, 0.7});  // the checkpoint's initial rates count
  for (FakeRun* run : {&whole, &first, &second}) run->context.progress.max_steps = 20;
  ParamSchedulerHook one(kSchedules), two(kSchedules), three(kSchedules);
  one.before_train(whole.context);
  two.before_train(first.context);
  const std::vector<double> expected = rates(whole, one, 20);
  const ScheduleCurve curve(kSchedules, "lr", {20});
  for (int64_t step = 0; step < 20; ++step) {
    EXPECT_EQ(expected[2 * step], curve.at(step, 0.1));
    EXPECT_EQ(expected[2 * step + 1], curve.at(step, 0.5));
  }
  EXPECT_EQ(whole.hyper_parameters.writes, 0);  // the optimizer looks the values up by itself
  std::vector<double> seen = rates(first, two, 7);

  second.context.progress.step = 7;
  second.hyper_parameters.applied_steps = 7;  // as the optimizer's state has it
  three.load_state_dict(two.state_dict());
  three.before_train(second.context);
  for (const double rate : rates(second, three, 20)) seen.push_back(rate);
  EXPECT_EQ(seen, expected);
}

TEST(ParamSchedulerHook, DrivesMomentumUnderTheNameThatTheGroupHas) {
  FakeRun run({0.1, 0.1});
  run.context.progress.max_steps = 100;
  run.hyper_parameters.give(0, "momentum", 0.9);
  run.hyper_parameters.give(1, "beta1", 0.8);
  ParamSchedulerHook hook({OneCycle{.cycle_momentum = true}});
  hook.before_train(run.context);
  rates(run, hook, 1);
  EXPECT_EQ(run.hyper_parameters.get(0, "momentum"), 0.95);
  EXPECT_EQ(run.hyper_parameters.get(1, "beta1"), 0.95);
  rates(run, hook, 30);
  EXPECT_NEAR(run.hyper_parameters.get(0, "momentum"), 0.85, 1e-12);
  EXPECT_NEAR(run.hyper_parameters.get(1, "beta1"), 0.85, 1e-12);

  FakeRun plain;
  ParamSchedulerHook lost({Constant{.factor = 0.5, .param_name = "momentum"}});
  expect_error<ConfigError>([&] { lost.before_train(plain.context); }, {"schedule of momentum", "numbers: lr"});
}

TEST(ParamSchedulerHook, RefusesBadSchedulesAndOtherGroups) {
  expect_error<ConfigError>([] { ParamSchedulerHook({CustomSchedule{.type = "Sine"}}); }, {"Sine"});
  FakeRun two_groups({0.1, 0.2}), one_group;
  two_groups.context.progress.max_steps = one_group.context.progress.max_steps = 10;
  ParamSchedulerHook saved(kSchedules), loaded(kSchedules);
  saved.before_train(two_groups.context);
  loaded.load_state_dict(saved.state_dict());
  expect_error<CheckpointError>([&] { loaded.before_train(one_group.context); }, {"2 groups", "expected 1"});
}

// Falls, stays, rises and swings, with a NaN.
std::vector<double> metrics() {
  std::vector<double> values;
  for (int k = 0; k < 40; ++k) values.push_back(2 / (1 + 0.1 * k) + 0.2 * std::sin(0.9 * k));
  values.insert(values.end(), 20, values.back());
  values.push_back(std::nan(""));
  for (int k = 0; k < 39; ++k) values.push_back(0.5 + 0.01 * k);
  return values;
}
const std::vector<double> kMetrics = metrics();

// A validation after every epoch of 50 steps.
const Schedules kWatched = {
    Linear{.start_factor = 0.1, .end = 1200},
    ReduceOnPlateau{.factor = 0.5, .patience = 2, .cooldown = 1, .begin = 10, .end = 80, .by_epoch = true}};

std::vector<double> rates_after_validations(FakeRun& run, ParamSchedulerHook& hook, std::size_t from, std::size_t to) {
  std::vector<double> seen;
  for (std::size_t epoch = from; epoch < to; ++epoch) {
    for (int step = 0; step < 50; ++step) run.step(hook);
    run.validation(hook, {{"loss", kMetrics[epoch]}});
    seen.push_back(next_rate(run));
  }
  return seen;
}

TEST(ParamSchedulerHook, ReducesOnAPlateauBesideAnotherSchedule) {
  FakeRun run;
  run.context.progress.steps_per_epoch = 50;
  ParamSchedulerHook hook(kWatched);
  hook.before_train(run.context);
  const auto seen = rates_after_validations(run, hook, 0, kMetrics.size());
  PlateauWatch watch(std::get<ReduceOnPlateau>(kWatched[1]));
  double share = 1;
  for (std::size_t epoch = 0; epoch < seen.size(); ++epoch) {
    if (epoch >= 10 && epoch < 80 && watch.observe(kMetrics[epoch])) share /= 2;
    const double through = std::min(50.0 * static_cast<double>(epoch + 1), 1199.0) / 1199;
    EXPECT_NEAR(seen[epoch], 0.1 * (0.1 + 0.9 * through) * share, 1e-12) << "after epoch " << epoch;
  }
  EXPECT_LT(share, 0.1);
}

TEST(ParamSchedulerHook, ResumesOnAPlateau) {
  FakeRun whole;
  whole.context.progress.steps_per_epoch = 50;
  ParamSchedulerHook unbroken(kWatched);
  unbroken.before_train(whole.context);
  const auto expected = rates_after_validations(whole, unbroken, 0, 60);
  for (const std::size_t stop : {5U, 25U, 41U, 42U}) {
    FakeRun first, second;
    first.context.progress.steps_per_epoch = second.context.progress.steps_per_epoch = 50;
    ParamSchedulerHook before(kWatched), after(kWatched);
    before.before_train(first.context);
    auto seen = rates_after_validations(first, before, 0, stop);
    second.context.progress.step = second.hyper_parameters.applied_steps = static_cast<int64_t>(stop) * 50;
    after.load_state_dict(before.state_dict());
    after.before_train(second.context);
    for (const double rate : rates_after_validations(second, after, stop, 60)) seen.push_back(rate);
    EXPECT_EQ(seen, expected);
  }
}

TEST(ParamSchedulerHook, NamesTheMetricThatAPlateauMisses) {
  FakeRun run;
  ParamSchedulerHook hook({ReduceOnPlateau{.monitor = "accuracy", .rule = "greater"}});
  run.validation(hook, {{"loss", 1}});  // before training nothing is due
  hook.before_train(run.context);
  expect_error<ConfigError>([&] { run.validation(hook, {{"loss", 1}, {"error", 2}}); },
                            {"no metric 'accuracy'", "error, loss", "monitor"});
}

}  // namespace
}  // namespace duet
