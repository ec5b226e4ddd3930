#include <duet/hooks/param_scheduler_hook.h>

#include <duet/core/error.h>
#include <gtest/gtest.h>

#include "../support/expect_error.h"
#include "../support/fakes.h"

namespace duet {
namespace {

const std::vector<ScheduleOptions> kSchedules = {{.type = "Linear", .end = 5, .start_factor = 0.1},
                                                 {.type = "Cosine", .begin = 5}};

// The rates that updates `from` .. `to` - 1 run with, group by group.
std::vector<double> rates(FakeRun& run, ParamSchedulerHook& hook, int64_t to) {
  std::vector<double> seen;
  while (run.context.update < to) {
    for (std::size_t group = 0; group < run.hyper_parameters.group_count(); ++group) {
      seen.push_back(run.hyper_parameters.get(group, "lr"));
    }
    run.update(hook);
  }
  return seen;
}

TEST(ParamSchedulerHook, SetsTheRateOfEveryGroupBeforeEachUpdate) {
  FakeRun run({0.1, 0.5});
  run.context.max_updates = 20;
  ParamSchedulerHook hook(kSchedules);
  hook.before_train(run.context);
  const std::vector<double> seen = rates(run, hook, 20);
  for (int64_t update = 0; update < 20; ++update) {
    EXPECT_EQ(seen[2 * update], scheduled_lr(kSchedules, update, 0.1, 20));
    EXPECT_EQ(seen[2 * update + 1], scheduled_lr(kSchedules, update, 0.5, 20));
  }
}

TEST(ParamSchedulerHook, FollowsTheSameCurveAfterAResume) {
  FakeRun whole, first, second;
  for (FakeRun* run : {&whole, &first, &second}) run->context.max_updates = 20;
  ParamSchedulerHook one(kSchedules), two(kSchedules), three(kSchedules);
  one.before_train(whole.context);
  two.before_train(first.context);
  const std::vector<double> expected = rates(whole, one, 20);
  std::vector<double> seen = rates(first, two, 7);

  second.context.update = 7;
  second.hyper_parameters.set(0, "lr", first.hyper_parameters.get(0, "lr"));  // as the optimizer's state has it
  three.load_state_dict(two.state_dict());
  three.before_train(second.context);
  for (const double rate : rates(second, three, 20)) seen.push_back(rate);
  EXPECT_EQ(seen, expected);
}

TEST(ParamSchedulerHook, TakesTheRunsLengthFromWhicheverLimitComesFirst) {
  const std::vector<ScheduleOptions> polynomial = {{.type = "Polynomial"}};
  FakeRun run;
  run.context.max_epochs = 3;
  run.context.updates_per_epoch = 4;
  ParamSchedulerHook by_epochs(polynomial);
  by_epochs.before_train(run.context);
  EXPECT_EQ(rates(run, by_epochs, 12).back(), 0);

  FakeRun shorter;
  shorter.context.max_epochs = 3;
  shorter.context.updates_per_epoch = 4;
  shorter.context.max_updates = 6;
  ParamSchedulerHook by_updates(polynomial);
  by_updates.before_train(shorter.context);
  EXPECT_EQ(rates(shorter, by_updates, 6).back(), 0);

  FakeRun unknown;
  unknown.context.max_epochs = 3;
  ParamSchedulerHook lost(polynomial);
  expect_error<ConfigError>([&] { lost.before_train(unknown.context); }, {"Polynomial", "unknown length"});
}

TEST(ParamSchedulerHook, WritesOnlyRatesThatChange) {
  FakeRun run;
  run.context.max_updates = 100;
  ParamSchedulerHook hook({{.type = "Step", .step_size = 10}});
  hook.before_train(run.context);
  rates(run, hook, 35);
  EXPECT_EQ(run.hyper_parameters.writes, 3);

  FakeRun untouched;
  ParamSchedulerHook none({});
  none.before_train(untouched.context);
  rates(untouched, none, 5);
  EXPECT_EQ(untouched.hyper_parameters.writes, 0);
}

TEST(ParamSchedulerHook, RefusesBadSchedulesAndOtherGroups) {
  expect_error<ConfigError>([] { ParamSchedulerHook({{.type = "Sine"}}); }, {"Sine"});
  FakeRun two_groups({0.1, 0.2}), one_group;
  two_groups.context.max_updates = one_group.context.max_updates = 10;
  ParamSchedulerHook saved(kSchedules), loaded(kSchedules);
  saved.before_train(two_groups.context);
  loaded.load_state_dict(saved.state_dict());
  expect_error<CheckpointError>([&] { loaded.before_train(one_group.context); }, {"2 groups", "expected 1"});
}

}  // namespace
}  // namespace duet
