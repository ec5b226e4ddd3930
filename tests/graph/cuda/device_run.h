#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>
#include <ATen/Functions.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "core/detail/train_step.h"
#include "graph/detail/graph_executor.h"
#include "tests/cuda_stand_in/stand_in.h"
#include "tests/support/changed_loss.h"
#include "tests/support/fake_communicator.h"
#include "tests/support/toy_tasks.h"

namespace duet::testing {

inline constexpr int64_t kEagerSteps = 3;  // before the one that is recorded

inline const at::Device kDevice(at::kCUDA, 0);

// Hooks at both split points, which cut the captured step into three graphs.
class SplittingObserver : public StepObserver {
 public:
  bool splits() const override { return true; }
};

// A step to capture.
struct Kind {
  std::string name = "plain";
  ToyTask task = mlp_task();
  bool splits = false;
  std::shared_ptr<Communicator> ranks = one_process();
};

inline std::vector<Kind> kinds() {
  const auto doubles = [](const at::Tensor& sum) { sum.mul_(2); };
  return {{},
          {.name = "with splits", .splits = true},
          {.name = "with collectives", .ranks = std::make_shared<FakeCommunicator>(0, 2, doubles)}};
}

inline GraphOptions without_checks() {
  GraphOptions graph;
  graph.verify_interval = 0;
  graph.check = Check::kOff;
  return graph;
}

inline MicroBatches on_device(const ToyTask& task, int64_t samples = 8) {
  const Batch batch = task.batch(samples, 1).mapped([](const at::Tensor& tensor) { return tensor.to(kDevice); });
  return {{batch}, {static_cast<double>(samples)}, static_cast<double>(samples)};
}

// A trainer's step and its executor, without the loop around them.
class DeviceRun {
 public:
  explicit DeviceRun(const Kind& kind = {}, const GraphOptions& graph = without_checks())
      : task_(kind.task),
        step_(task_.make(), kDevice, options(kind)),
        observer_(kind.splits ? std::make_unique<SplittingObserver>() : std::make_unique<StepObserver>()),
        executor_(step_, kDevice, graph) {
    step_.task().train(true);
    step_at(9);  // the optimizer learns in its first step which parameters get a gradient
  }

  // One step on `samples`, whose number tells signatures apart.
  void step_at(int64_t samples) { step_on(on_device(task_, samples)); }
  void step_on(const MicroBatches& micro_batches) {
    executor_.on_stream([&] {
      step_.begin(micro_batches);
      const StepPlan plan = executor_.choose(micro_batches, *observer_);
      executor_.run(plan, micro_batches, *observer_);
      step_.end();
    });
  }
  void steps(int64_t count, int64_t samples = 8) {
    for (int64_t n = 0; n < count; ++n) step_at(samples);
  }
  // Up to the step that captures.
  void warm_up(int64_t samples = 8) { steps(kEagerSteps + 1, samples); }

  SignatureReport latest() const { return executor_.report().back(); }
  GraphExecutor& executor() { return executor_; }
  TrainStep& step() { return step_; }

 private:
  static TrainerOptions options(const Kind& kind) {
    TrainerOptions options;
    options.optimizer = OptimizerOptions::of_type("AdamW");
    options.clip_grad = ClipNorm{1, 2.0};
    options.distributed.communicator = kind.ranks;
    return options;
  }

  ToyTask task_;
  TrainStep step_;
  std::unique_ptr<StepObserver> observer_;
  GraphExecutor executor_;
};

// Each run in a thread of its own.
inline void in_threads(DeviceRun (&runs)[2], const std::function<void(DeviceRun&)>& work) {
  std::vector<std::thread> threads;
  for (DeviceRun& run : runs) threads.emplace_back([&] { EXPECT_NO_THROW(work(run)); });
  for (std::thread& thread : threads) thread.join();
}

inline Kind mlp_with(ChangeLoss change) {
  return {.task = mlp_with_loss([change = std::move(change)] { return change; })};
}

// Kernels do nothing here: what they should have written is what was there, and a comparison finds what differs in
// that. So there are zeros everywhere.
inline void zero_memory() {
  for (const auto& segment : c10::cuda::CUDACachingAllocator::snapshot().segments) {
    EXPECT_EQ(cudaMemset(reinterpret_cast<void*>(segment.address), 0, segment.total_size), cudaSuccess);
  }
}

inline Kind with_zeros(Kind kind) {
  kind.task.batch = [batch = kind.task.batch](int64_t samples, uint64_t seed) {
    return batch(samples, seed).mapped([](const at::Tensor& tensor) { return at::zeros_like(tensor); });
  };
  return kind;
}

// What an eager step and the next capture of the process need.
inline void expect_all_works() {
  cuda::take_violations();
  EXPECT_NO_THROW(at::dropout(at::ones({4}, kDevice), 0.5, true)) << "outside a capture";
  DeviceRun other;
  other.steps(kEagerSteps + 3);
  EXPECT_EQ(other.latest().state, "captured") << other.latest().reason;
  EXPECT_EQ(other.latest().replays, 2);
  EXPECT_THAT(cuda::take_violations(), ::testing::IsEmpty());
}

}  // namespace duet::testing
