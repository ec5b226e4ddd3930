#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>
#include "core/hook.h"
#include "tests/support/expect_error.h"
#include "tests/support/fakes.h"
#include "tests/support/loop_runs.h"

namespace duet {
namespace {

using testing::Names;

std::vector<HookPoint> all_points() {
  std::vector<HookPoint> points;
  for (int i = 0; i < static_cast<int>(HookPoint::kCount); ++i) points.push_back(static_cast<HookPoint>(i));
  return points;
}

TEST(CallbackHook, UsesExactlyThePointsThatHaveALambda) {
  for (const HookPoint with : all_points()) {
    auto hook = std::make_unique<CallbackHook>("watch");
    if (with == HookPoint::kInStep) {
      hook->on_step([](StepView&) {});
    } else {
      hook->on(with, [](TrainContext&) {});
    }
    const std::unique_ptr<Hook> added = as_hook(std::move(hook));
    for (const HookPoint point : all_points()) EXPECT_EQ(added->uses(point), point == with) << to_string(point);
  }
}

TEST(CallbackHook, CallsTheLambdaOfEveryPoint) {
  FakeRun run;
  for (const HookPoint point : all_points()) {
    if (point == HookPoint::kInStep) continue;
    int calls = 0;
    auto hook = std::make_unique<CallbackHook>("watch");
    hook->on(point, [&](TrainContext& context) { calls += &context == &run.context ? 1 : 100; });
    HookList hooks;
    hooks.add(std::move(hook));
    for (const HookPoint other : all_points()) {
      if (other != HookPoint::kInStep) hooks.call(other, run.context);
    }
    EXPECT_EQ(calls, 1) << to_string(point);
  }
}

TEST(CallbackHook, HasAPlaceAmongOtherHooks) {
  FakeRun run;
  Names calls;
  HookList hooks;
  const auto add = [&](const char* name, int priority, std::vector<std::string> after = {}) {
    auto hook = std::make_unique<CallbackHook>(name, priority, std::move(after));
    for (const char* call : {"1", "2"}) {
      hook->on(HookPoint::kAfterTrainIter,
               [&calls, text = std::string(name) + call](TrainContext&) { calls.push_back(text); });
    }
    hooks.add(std::move(hook));
  };
  add("late", kVeryLow);
  add("first", kHighest, {"usual"});
  add("usual", kNormal);
  hooks.call(HookPoint::kAfterTrainIter, run.context);
  EXPECT_EQ(calls, (Names{"usual1", "usual2", "first1", "first2", "late1", "late2"}));
}

TEST(CallbackHook, RefusesWhatItCannotCall) {
  CallbackHook hook("watch");
  expect_error<ConfigError>([&] { hook.on(HookPoint::kAfterTrain, nullptr); }, {"after_train", "'watch'"});
  expect_error<ConfigError>([&] { hook.on_step(nullptr); }, {"in_step", "'watch'"});
  expect_error<ConfigError>([&] { hook.on(HookPoint::kInStep, [](TrainContext&) {}); }, {"on_step()"});
}

class Callbacks : public ::testing::TestWithParam<const char*> {};

// The sum of the losses, taken by code of the step, equals that of the losses handed out.
TEST_P(Callbacks, AddCodeToTheStep) {
  GraphOptions graph;
  graph.fallback = Fallback::kStrict;
  graph.verify_interval = 2;
  seed_all(3);
  const auto trainer = testing::make_trainer(GetParam(), testing::mlp_task().make(), {}, graph);
  const at::Tensor sum = at::zeros({});
  at::Tensor expected = at::zeros({});
  auto hook = std::make_unique<CallbackHook>("watch");
  hook->on_step([sum](StepView& context) { sum.add_(context.output.loss); })
      .on(HookPoint::kAfterTrainIter, [&](TrainContext& context) { expected = expected + context.step.loss(); });
  trainer->add_hook(std::move(hook));
  for (uint64_t n = 0; n < 9; ++n) trainer->step(testing::mlp_task().batch(8, n));
  trainer->finish();
  EXPECT_GT(expected.item<float>(), 0);
  EXPECT_TRUE(testing::same_bits(sum, expected)) << sum << expected;
}

INSTANTIATE_TEST_SUITE_P(Modes, Callbacks, ::testing::Values("eager", "graph"));

}  // namespace
}  // namespace duet
