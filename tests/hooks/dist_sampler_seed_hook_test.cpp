#include <algorithm>
#include <gmock/gmock.h>
#include "core/hook.h"
#include "hooks/detail/run_info_hooks.h"
#include "tests/support/loop_runs.h"
#include "tests/support/modes.h"

namespace duet {
namespace {

using testing::loader;

class DistSamplerSeed : public testing::InBothModes {
 protected:
  using Order = std::vector<float>;  // one number of each sample

  // The samples of each of three epochs in their order.
  static std::vector<Order> orders(uint64_t seed, bool shuffle, int64_t trainings = 1) {
    std::vector<Order> epochs;
    LoopOptions loop;
    loop.max_epochs = 3;
    const auto trainer = testing::trainer_for(GetParam(), loop);
    trainer->add_hook(std::make_unique<DistSamplerSeedHook>());
    auto watch = std::make_unique<CallbackHook>("watch");
    watch->on(HookPoint::kBeforeTrainEpoch, [&](TrainContext&) { epochs.emplace_back(); });
    watch->on(HookPoint::kBeforeTrainIter, [&](TrainContext& context) {
      const at::Tensor input = context.step.micro_batches->batches.front()["input"];
      for (int64_t i = 0; i < input.size(0); ++i) epochs.back().push_back(input[i][0].item<float>());
    });
    trainer->add_hook(std::move(watch));
    const auto data = loader(12, seed, shuffle);
    for (int64_t i = 0; i < trainings; ++i) trainer->train(*data);
    return epochs;
  }
  static std::string log_of(bool shuffle) {
    ::testing::internal::CaptureStderr();
    orders(4, shuffle, 2);
    return ::testing::internal::GetCapturedStderr();
  }
};

TEST_P(DistSamplerSeed, GivesEachEpochItsOwnOrderThatFollowsFromTheSeed) {
  const std::vector<Order> epochs = orders(4, true);
  ASSERT_EQ(epochs.size(), 3U);
  Order sorted = epochs[0];
  std::sort(sorted.begin(), sorted.end());
  for (std::size_t i = 0; i < 3; ++i) {
    for (std::size_t k = 0; k < i; ++k) EXPECT_NE(epochs[i], epochs[k]) << "epochs " << i << " and " << k;
    Order same = epochs[i];
    std::sort(same.begin(), same.end());
    EXPECT_EQ(same, sorted) << "epoch " << i << " has other samples";
  }
  EXPECT_EQ(orders(4, true), epochs);
  EXPECT_NE(orders(5, true), epochs);
}

TEST_P(DistSamplerSeed, WarnsOnceIfTheOrderStays) {
  const std::string log = log_of(false);
  EXPECT_THAT(log, ::testing::HasSubstr("the same order in every epoch"));
  EXPECT_EQ(log.find("[DistSamplerSeedHook]"), log.rfind("[DistSamplerSeedHook]")) << log;
  EXPECT_EQ(log_of(true).find("[DistSamplerSeedHook]"), std::string::npos);
}

DUET_IN_BOTH_MODES(DistSamplerSeed);

}  // namespace
}  // namespace duet
