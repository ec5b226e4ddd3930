#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>
#include <ATen/Functions.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/library.h>
#include "base/device.h"
#include "base/error.h"
#include "core/detail/eager_executor.h"
#include "core/detail/train_step.h"
#include "graph/detail/graph_executor.h"
#include "tests/cuda_stand_in/stand_in.h"
#include "tests/graph/cuda/device_run.h"
#include "tests/support/fake_communicator.h"
#include "tests/support/toy_tasks.h"

// Steps captured by LibTorch's own CUDAGraph, allocator, generators and streams, over a stand-in for the CUDA runtime.
// Kernels do nothing there: what is tested is the order of calls, the rules of captures and what is left after errors.

namespace duet {
namespace {

namespace cuda = testing::cuda;
using testing::DeviceRun;
using testing::expect_all_works;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::kDevice;
using testing::kEagerSteps;
using testing::Kind;
using testing::kinds;
using testing::mlp_with;

constexpr int kUnknownError = 999;  // cudaErrorUnknown
constexpr int kOutOfMemory = 2;     // cudaErrorMemoryAllocation

// Waits for the device and swallows the error that a capture makes of that.
at::Tensor wait_quietly(const at::Tensor& tensor) {
  cudaDeviceSynchronize();
  cudaGetLastError();
  return at::empty_like(tensor);
}

TORCH_LIBRARY(duet_cuda_test, library) { library.def("wait_quietly(Tensor tensor) -> Tensor"); }
TORCH_LIBRARY_IMPL(duet_cuda_test, CUDA, library) { library.impl("wait_quietly", wait_quietly); }

class CudaGraph : public ::testing::Test {
 protected:
  void SetUp() override {
    seed_all(1);
    cuda::take_violations();
  }
  void TearDown() override {
    cuda::fail("", 0, 0);
    EXPECT_FALSE(cuda::is_capturing());
  }
};

TEST_F(CudaGraph, CapturesAStepAndReplaysIt) {
  std::vector<Kind> all = kinds();
  all.push_back({.name = "partial", .task = testing::partial_task()});
  all.push_back({.name = "positions made on the device", .task = testing::attention_task()});
  for (const Kind& kind : all) {
    SCOPED_TRACE(kind.name);
    const int64_t outside = cuda::outside_launches();
    const int64_t graphs = kind.splits ? 3 : 1;
    DeviceRun run(kind);
    run.warm_up();
    const int64_t captures = cuda::count("cudaStreamBeginCapture");
    const int64_t launches = cuda::count("cudaGraphLaunch");
    run.steps(5);
    EXPECT_EQ(cuda::count("cudaGraphLaunch"), launches + 5 * graphs);
    EXPECT_EQ(cuda::count("cudaStreamBeginCapture"), captures + graphs);
    EXPECT_EQ(run.latest().state, "captured") << run.latest().reason;
    EXPECT_EQ(run.latest().replays, 5);
    EXPECT_GT(run.latest().bytes, 0);
    EXPECT_THAT(cuda::take_violations(), IsEmpty());
    EXPECT_EQ(cuda::outside_launches(), outside) << "work of the step that its graph lacks";
  }
}

TEST_F(CudaGraph, DrawsFromGeneratorsOfTheTasksOwn) {
  at::Generator own = at::make_generator<at::CUDAGeneratorImpl>(kDevice.index());
  DeviceRun run(mlp_with(
      [own](const at::Tensor& loss) { return at::mul(loss, at::rand({1}, own, at::TensorOptions(kDevice))).sum(); }));
  run.steps(kEagerSteps + 2);
  EXPECT_EQ(run.latest().state, "captured") << run.latest().reason;
  const auto offset = [&own] { return own.get_offset(); };
  const uint64_t before = offset();
  run.steps(2);
  EXPECT_EQ(offset(), before + 8) << "four numbers a draw";
}

TEST_F(CudaGraph, NamesWhatTheHostDoesInTheStep) {
  at::Tensor counter = at::zeros({});
  const std::vector<std::pair<std::string, std::function<at::Tensor(const at::Tensor&)>>> cases = {
      {"aten::_to_copy copies to the host",
       [](const at::Tensor& loss) { return at::add(loss, loss.cpu().to(kDevice)); }},
      {"aten::_to_copy copies from the host to the device",
       [](const at::Tensor& loss) { return at::mul(loss, at::full({}, 2.0).to(kDevice)); }},
      {"aten::add_.Scalar computes on the host",
       [counter](const at::Tensor& loss) { return at::mul(loss, counter.add_(1)); }},
      {"aten::rand draws on the host", [](const at::Tensor& loss) { return at::mul(loss, at::rand({})); }},
      {"aten::mul.Tensor uses a tensor of the host",
       [counter](const at::Tensor& loss) { return at::mul(loss, counter); }},
  };
  for (const auto& [reason, change] : cases) {
    const int64_t captures = cuda::count("cudaStreamBeginCapture");
    DeviceRun run(mlp_with(change));
    run.steps(kEagerSteps + 2);
    EXPECT_EQ(run.latest().state, "eager");
    EXPECT_THAT(run.latest().reason, HasSubstr(reason + ", after"));
    EXPECT_EQ(cuda::count("cudaStreamBeginCapture"), captures);
  }
  DeviceRun constant(mlp_with([](const at::Tensor& loss) { return at::mul(loss, at::full({}, 2.0)); }));
  constant.steps(kEagerSteps + 2);
  EXPECT_EQ(constant.latest().state, "captured") << constant.latest().reason;
}

// Not the op after it, which the runtime refuses.
TEST_F(CudaGraph, NamesTheOpThatSpoilsACaptureWithoutAnError) {
  static const auto wait = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("duet_cuda_test::wait_quietly", "")
                               .typed<at::Tensor(const at::Tensor&)>();
  DeviceRun run(mlp_with([](const at::Tensor& loss) { return at::mul(loss, wait.call(loss.detach())); }));
  run.steps(kEagerSteps + 2);
  EXPECT_EQ(run.latest().state, "eager");
  EXPECT_THAT(run.latest().reason, HasSubstr("refused the capture of duet_cuda_test::wait_quietly"));
  expect_all_works();
}

TEST_F(CudaGraph, ThePoolOutlivesItsSteps) {
  DeviceRun run;
  run.steps(kEagerSteps + 2);
  EXPECT_EQ(run.latest().state, "captured");
  for (int round = 0; round < 3; ++round) {
    // Another weight in its place: all captured steps are dropped.
    const at::Tensor& weight = run.step().parameters().front().second;
    weight.unsafeGetTensorImpl()->set_storage_keep_dtype(weight.detach().clone().storage());
    run.steps(kEagerSteps + 3);
    EXPECT_EQ(run.latest().state, "captured") << run.latest().reason;
  }
  EXPECT_THAT(run.latest().reason, IsEmpty());
}

TEST_F(CudaGraph, GivesBackItsMemory) {
  c10::cuda::CUDACachingAllocator::emptyCache();
  const int64_t before = cuda::used_memory();
  {
    DeviceRun run;
    run.steps(kEagerSteps + 3);
    EXPECT_GT(cuda::used_memory(), before);
  }
  c10::cuda::CUDACachingAllocator::emptyCache();
  EXPECT_EQ(cuda::used_memory(), before);
}

// Between steps of a loop, which runs on the capture stream as a whole.
TEST_F(CudaGraph, AReplayIsOneLaunchAndCopiesOfInputsAndResults) {
  DeviceRun run;
  run.steps(kEagerSteps + 4);
  ASSERT_EQ(run.latest().state, "captured");
  const MicroBatches micro_batches = testing::on_device(testing::mlp_task());
  const int64_t replays = run.latest().replays;
  cuda::Counts calls;
  run.executor().on_stream([&] {
    const cuda::Counts before = cuda::counts();
    run.step_on(micro_batches);
    calls = cuda::calls_since(before);
  });
  EXPECT_EQ(run.latest().replays, replays + 1);
  EXPECT_EQ(calls.at("cudaGraphLaunch"), 1);
  EXPECT_EQ(calls.at("cudaMemcpyAsync"), 2 + 3) << "input, target; loss, gradient norm, what the task logs";
  EXPECT_LE(calls.at("cudaLaunchKernel"), 3) << "seed and offset of the generator; the step's number";
  for (const char* none : {"cudaEventRecord", "cudaStreamWaitEvent", "cudaStreamSynchronize", "cudaMalloc"}) {
    EXPECT_EQ(calls.count(none), 0U) << none;
  }
}

// A trainer per thread; all draw from the device's one generator.
TEST_F(CudaGraph, TrainersOfSeveralThreadsDoNotSpoilEachOthersCaptures) {
  constexpr int64_t kSignatures = 6;
  DeviceRun runs[2];  // models draw their first weights from the host's generator, which a recording watches
  testing::in_threads(runs, [](DeviceRun& run) {
    for (int64_t n = 0; n < kSignatures; ++n) run.steps(kEagerSteps + 3, 10 + n);
  });
  for (DeviceRun& run : runs) {
    const std::vector<SignatureReport> report = run.executor().report();
    EXPECT_EQ(report.size(), kSignatures + 1);
    for (std::size_t i = 1; i < report.size(); ++i) EXPECT_EQ(report[i].state, "captured") << report[i].reason;
  }
}

// Its dropout would find the generator in a capture's mode.
TEST_F(CudaGraph, AnEagerTrainerWaitsForTheCaptureOfAnotherThread) {
  std::atomic<bool> stop = false;
  std::atomic<int64_t> eager_steps = 0;
  std::string error;
  DeviceRun run, other;  // models draw their first weights from the host's generator, which a recording watches
  std::thread eager([&] {
    try {
      EagerExecutor executor(other.step());
      StepObserver observer;
      const MicroBatches micro_batches = testing::on_device(testing::mlp_task());
      for (; !stop; ++eager_steps) {
        other.step().begin(micro_batches);
        executor.run({StepPath::kEager}, micro_batches, observer);
        other.step().end();
      }
    } catch (const std::exception& failed) {
      error = failed.what();
    }
  });
  for (int64_t n = 0; n < 20; ++n) {
    const int64_t before = eager_steps;
    run.steps(kEagerSteps + 8, 10 + n);  // so many replays that further recordings pay
    while (error.empty() && eager_steps == before) std::this_thread::yield();
  }
  stop = true;
  eager.join();
  EXPECT_EQ(error, "");
  for (const SignatureReport& signature : run.executor().report()) {
    if (signature.signature != run.executor().report().front().signature) {
      EXPECT_EQ(signature.state, "captured") << signature.reason;
    }
  }
}

// The driver, too, keeps a graph in memory that the allocator must leave to it.
TEST_F(CudaGraph, ShortOfMemoryItGivesBackWhatNobodyUsesAndTriesAgain) {
  for (const bool in_driver : {false, true}) {
    DeviceRun run;
    run.warm_up();
    at::empty({64 << 20}, at::TensorOptions(kDevice).dtype(at::kByte));  // cached from here on, used by nobody
    const int64_t used = cuda::used_memory();
    in_driver ? cuda::fail("cudaGraphInstantiate", 1, kOutOfMemory) : cuda::set_memory(used);
    run.steps(3);
    cuda::set_memory(int64_t{4} << 30);
    EXPECT_EQ(cuda::failed_call(), in_driver ? "cudaGraphInstantiate" : "");
    EXPECT_EQ(run.latest().state, "captured") << run.latest().reason;
    EXPECT_EQ(run.latest().replays, 3);
    EXPECT_LT(cuda::used_memory(), used);
  }
}

// Else an eager step that fits alone would not fit beside it.
TEST_F(CudaGraph, ARefusedCaptureKeepsNoMemory) {
  DeviceRun run;
  run.warm_up();
  c10::cuda::CUDACachingAllocator::emptyCache();
  const int64_t before = cuda::used_memory();
  cuda::fail("cudaGraphInstantiate", 1, kUnknownError);
  run.step_at(8);
  EXPECT_EQ(run.latest().state, "eager");
  c10::cuda::CUDACachingAllocator::emptyCache();
  EXPECT_LE(cuda::used_memory(), before);
  expect_all_works();
}

// They read seed and offset from one place in memory, which each of them writes to.
TEST_F(CudaGraph, ReplaysOfTrainersInSeveralThreadsFollowEachOther) {
  DeviceRun first, second;
  first.steps(kEagerSteps + 3);
  second.steps(kEagerSteps + 3);
  const auto waits_in_a_loop = [](DeviceRun& run, int64_t steps) {
    int64_t waits = 0;
    run.executor().on_stream([&] {
      const int64_t before = cuda::count("cudaStreamWaitEvent");
      run.steps(steps);
      waits = cuda::count("cudaStreamWaitEvent") - before;
    });
    return waits;
  };
  EXPECT_EQ(waits_in_a_loop(first, 3), 1) << "for the second one's last replay";
  int64_t waits = 0;
  std::thread([&] { waits = waits_in_a_loop(second, 3); }).join();
  EXPECT_EQ(waits, 1) << "for the first one's";
  EXPECT_EQ(waits_in_a_loop(second, 3), 0);
}

}  // namespace
}  // namespace duet
