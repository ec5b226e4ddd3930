#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include "core/hook.h"
#include "tests/support/expect_error.h"
#include "tests/support/loop_runs.h"
#include "tests/support/modes.h"

namespace duet {
namespace {

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

TEST(CallbackHook, RefusesWhatItCannotCall) {
  CallbackHook hook("watch");
  expect_error<ConfigError>([&] { hook.on(HookPoint::kAfterTrain, nullptr); }, {"after_train", "'watch'"});
  expect_error<ConfigError>([&] { hook.on_step(nullptr); }, {"in_step", "'watch'"});
  expect_error<ConfigError>([&] { hook.on(HookPoint::kInStep, [](TrainContext&) {}); }, {"on_step()"});
}

class Callbacks : public testing::InBothModes {};

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

DUET_IN_BOTH_MODES(Callbacks);

}  // namespace
}  // namespace duet
