#include <cstring>
#include <memory>
#include <vector>
#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "base/device.h"
#include "tests/cuda_stand_in/stand_in.h"
#include "tests/graph/cuda/device_run.h"
#include "tests/support/fake_communicator.h"

// Checks and comparisons of steps on a device: with other ranks, beside other trainers.

namespace duet {
namespace {

using testing::DeviceRun;
using testing::kEagerSteps;

struct OtherRank : testing::FakeCommunicator {
  OtherRank() : FakeCommunicator(0, 2, [](const at::Tensor& sum) { sum.mul_(2); }) {}
  std::vector<std::string> all_gather(const std::string& bytes, bool of_one_size) override {
    auto all = FakeCommunicator::all_gather(bytes, of_one_size);
    if (!of_one_size) return all;
    const int32_t yes = 1;
    if (finds_a_difference && gathers++ > 0) std::memcpy(all[1].data(), &yes, sizeof(yes));
    return all;
  }
  bool finds_a_difference = false;  // though its host code is the same, of which it tells first
  int gathers = 0;
};

TEST(DeviceComparison, RanksRunOpByOpAgainTogether) {
  seed_all(1);
  const auto ranks = std::make_shared<OtherRank>();
  DeviceRun run(testing::with_zeros({.ranks = ranks}), {.check = Check::kOff, .verify_interval = 1});
  testing::zero_memory();
  run.steps(kEagerSteps + 3);
  const auto sums_of_a_step = [&] {
    const int before = ranks->sums;
    run.step_at(8);
    EXPECT_EQ(run.latest().state, "captured") << run.latest().reason;
    return ranks->sums - before;
  };
  const int of_eager_run = sums_of_a_step();
  EXPECT_GT(of_eager_run, 0);
  ranks->finds_a_difference = true;
  EXPECT_EQ(sums_of_a_step(), 4 * of_eager_run);
  EXPECT_EQ(run.latest().nondeterministic, 0);
}

// Or they would draw it anew in the next step, which eager mode does not.
TEST(DeviceComparison, LeavesTheStateOfTheDropoutOfRnnsAlone) {
  seed_all(1);
  auto* const generator =
      at::check_generator<at::CUDAGeneratorImpl>(at::globalContext().defaultGenerator(testing::kDevice));
  generator->reset_rnn_state();  // as their first step does after a seed
  DeviceRun run(testing::with_zeros({}), {.check = Check::kOff, .verify_interval = 1});
  testing::zero_memory();
  run.steps(kEagerSteps + 4);
  EXPECT_GT(generator->get_offset(), 0U);
  EXPECT_GT(run.latest().check_seconds, 0) << "nothing was compared";
  EXPECT_FALSE(generator->reset_rnn_state());
  seed_all(2);
  EXPECT_TRUE(generator->reset_rnn_state());
}

TEST(DeviceComparison, SaysThatTheReplayFailed) {
  seed_all(1);
  DeviceRun run(testing::with_zeros({}), {.check = Check::kOff, .verify_interval = 1});
  testing::zero_memory();
  run.steps(kEagerSteps + 4);
  testing::cuda::fail("cudaGraphLaunch", 1, /*cudaErrorUnknown=*/999);
  run.step_at(8);
  EXPECT_EQ(run.latest().state, "eager");
  EXPECT_THAT(run.latest().reason, ::testing::StartsWith("its replay failed (CUDA error: "));
  EXPECT_THAT(run.latest().reason, ::testing::Not(::testing::HasSubstr("report it")));
}

// All draw from the device's one generator, whose state a comparison puts back.
TEST(DeviceComparison, TrainersOfSeveralThreadsCompareTheirStepsInTurn) {
  seed_all(1);
  constexpr int64_t kSteps = 40;
  const GraphOptions compared{.check = Check::kOff, .verify_interval = 1};
  DeviceRun runs[] = {DeviceRun(testing::with_zeros({}), compared), DeviceRun(testing::with_zeros({}), compared)};
  testing::zero_memory();
  testing::in_threads(runs, [](DeviceRun& run) { run.steps(kSteps); });
  for (const DeviceRun& run : runs) {
    EXPECT_EQ(run.latest().state, "captured") << run.latest().reason;
    EXPECT_EQ(run.latest().replays, kSteps - kEagerSteps - 1);
    EXPECT_EQ(run.latest().nondeterministic, 0);
  }
}

}  // namespace
}  // namespace duet
