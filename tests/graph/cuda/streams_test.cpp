#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>
#include <ATen/Functions.h>
#include <c10/cuda/CUDAStream.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "base/device.h"
#include "core/detail/eager_executor.h"
#include "graph/graph_trainer.h"
#include "tests/cuda_stand_in/stand_in.h"
#include "tests/graph/cuda/device_run.h"
#include "tests/support/changed_loss.h"
#include "tests/support/fake_communicator.h"

// On which stream of the device a step runs: autograd remembers that of its nodes, and a capture takes none of another
// one.

namespace duet {
namespace {

namespace cuda = testing::cuda;
using testing::DeviceRun;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::kDevice;
using testing::kEagerSteps;
using ::testing::Not;

c10::StreamId current_stream() { return c10::cuda::getCurrentCUDAStream(kDevice.index()).id(); }

TEST(CudaStreams, AGraphStepRunsOnOneStreamInBothModes) {
  seed_all(1);
  std::set<c10::StreamId> seen;
  const testing::ToyTask task = testing::mlp_with_loss([&seen] {
    return [&seen](const at::Tensor& loss) {
      seen.insert(current_stream());
      return loss;
    };
  });
  TrainerOptions options;
  options.device = "cuda";
  const c10::StreamId callers = current_stream();
  GraphStep step(task.make(), options);
  cuda::take_violations();
  for (const Mode mode : {Mode::kEager, Mode::kGraph, Mode::kEager, Mode::kGraph}) {
    step.set_mode(mode);
    for (int64_t n = 0; n < kEagerSteps + 4; ++n) step(task.batch(8, 1));
  }
  EXPECT_EQ(seen.size(), 1U);
  EXPECT_EQ(seen.count(callers), 0U);
  EXPECT_EQ(current_stream(), callers);
  EXPECT_EQ(step.report().back().state, "captured") << step.report().back().reason;
  EXPECT_THAT(cuda::take_violations(), IsEmpty());
}

// Steps run on a stream of their own, and neither they nor the caller's work see what the other has not finished.
TEST(CudaStreams, AStepAndItsCallerWaitForEachOther) {
  seed_all(1);
  DeviceRun run;
  for (const bool fails : {false, true}) {
    cuda::write_log(true);
    try {
      run.executor().on_stream([fails] {
        at::ones({4}, kDevice);
        if (fails) throw std::runtime_error("the step fails");
      });
    } catch (const std::runtime_error&) {
    }
    const std::vector<std::string> calls = cuda::take_log();
    cuda::write_log(false);
    const std::vector<std::string> handshake = {"cudaEventRecord", "cudaStreamWaitEvent"};
    ASSERT_GE(calls.size(), 5U);
    EXPECT_EQ(std::vector<std::string>(calls.begin(), calls.begin() + 2), handshake);
    EXPECT_EQ(std::vector<std::string>(calls.end() - 2, calls.end()), handshake);
  }
}

// With other ranks, functions wait at the parameters for their gradients, from the first step on.
TEST(CudaStreams, SumsOfSeveralRanksFollowTheStepsToAnotherStream) {
  seed_all(1);
  std::set<c10::StreamId> seen;
  const auto sum = [&seen](const at::Tensor&) { seen.insert(current_stream()); };
  const testing::Kind kind{.ranks = std::make_shared<testing::FakeCommunicator>(0, 2, sum)};
  DeviceRun run(kind);
  const MicroBatches micro_batches = testing::on_device(kind.task);
  EagerExecutor eager(run.step());
  StepObserver observer;
  ::testing::internal::CaptureStderr();
  for (int n = 0; n < 2; ++n) {
    run.step().begin(micro_batches);
    eager.run({StepPath::kEager}, micro_batches, observer);
    run.step().end();
  }
  EXPECT_EQ(seen.count(current_stream()), 1U);
  seen.clear();
  const int64_t outside = cuda::outside_launches();
  cuda::take_violations();
  run.steps(kEagerSteps + 4);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), Not(HasSubstr("AccumulateGrad node's stream does not match")));
  EXPECT_EQ(run.latest().state, "captured") << run.latest().reason;
  EXPECT_EQ(seen.size(), 1U);
  EXPECT_EQ(seen.count(current_stream()), 0U);
  EXPECT_EQ(cuda::outside_launches(), outside) << "work of the step that its graph lacks";
  EXPECT_THAT(cuda::take_violations(), IsEmpty());
}

}  // namespace
}  // namespace duet
