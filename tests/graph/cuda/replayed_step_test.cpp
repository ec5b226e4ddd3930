#include <functional>
#include <ATen/Functions.h>
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include "base/device.h"
#include "core/detail/micro_batch_reader.h"
#include "tests/cuda_stand_in/stand_in.h"
#include "tests/graph/cuda/device_run.h"

// What the host does for a replayed step.

namespace {

int64_t patched = 0;

}  // namespace

// Ways to change a node of a graph, or to let the device choose among nodes, found here before the runtime's.
extern "C" {

cudaError_t cudaGraphExecKernelNodeSetParams(cudaGraphExec_t, cudaGraphNode_t, const cudaKernelNodeParams*) {
  ++patched;
  return cudaSuccess;
}
cudaError_t cudaGraphExecUpdate(cudaGraphExec_t, cudaGraph_t, cudaGraphExecUpdateResultInfo*) {
  ++patched;
  return cudaSuccess;
}
cudaError_t cudaGraphConditionalHandleCreate(cudaGraphConditionalHandle*, cudaGraph_t, unsigned int, unsigned int) {
  ++patched;
  return cudaSuccess;
}

}  // extern "C"

namespace duet {
namespace {

namespace cuda = testing::cuda;
using testing::DeviceRun;
using testing::kDevice;
using testing::kEagerSteps;

class ReplayedStep : public ::testing::Test {
 protected:
  void SetUp() override { seed_all(1); }

  // The calls of `steps` steps of a loop that runs on the capture stream.
  static cuda::Counts calls_of(DeviceRun& run, int64_t steps, const std::function<MicroBatches()>& next) {
    cuda::Counts calls;
    run.executor().on_stream([&] {
      run.step_on(next());
      const cuda::Counts before = cuda::counts();
      for (int64_t n = 0; n < steps; ++n) run.step_on(next());
      calls = cuda::calls_since(before);
    });
    return calls;
  }
};

TEST_F(ReplayedStep, FromPinnedMemoryTakesOneHandshakeAndCopies) {
  DeviceRun run;
  run.steps(kEagerSteps + 4);
  ASSERT_EQ(run.latest().state, "captured");
  MicroBatchReader reader(run.step().task(), kDevice);
  const Batch host =
      testing::mlp_task().batch(8, 1).mapped([](const at::Tensor& tensor) { return tensor.pin_memory(); });
  auto calls = calls_of(run, 10, [&] { return reader.prepare({host}, 0); });
  EXPECT_EQ(calls["cudaGraphLaunch"], 10);
  EXPECT_EQ(calls["cudaStreamWaitEvent"], 10);
  EXPECT_EQ(calls["cudaEventRecord"], 10 + 20) << "the handshake; the allocator's, for input and target";
  EXPECT_EQ(calls["cudaMemcpyAsync"], 10 * (2 + 2 + 3)) << "to the device, into the static inputs; results";
  for (const char* none : {"cudaEventCreate", "cudaStreamSynchronize", "cudaEventSynchronize", "cudaMalloc"}) {
    EXPECT_EQ(calls[none], 0) << none;
  }
}

// Numbers that change lie in tensors, whatever they are.
TEST_F(ReplayedStep, PatchesNoNodeOfItsGraph) {
  patched = 0;
  DeviceRun run;
  run.steps(kEagerSteps + 4);
  const int64_t captures = cuda::count("cudaStreamBeginCapture");
  for (const double lr : {1e-3, 1e-2, 1e-1}) {
    run.step().set(0, "lr", lr);
    run.steps(2);
  }
  EXPECT_EQ(cuda::count("cudaStreamBeginCapture"), captures);
  EXPECT_EQ(run.latest().state, "captured") << run.latest().reason;
  EXPECT_EQ(patched, 0);
}

}  // namespace
}  // namespace duet
