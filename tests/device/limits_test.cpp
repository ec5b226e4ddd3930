#include <memory>
#include <string>
#include <vector>
#include <ATen/Functions.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <gmock/gmock.h>
#include "base/device.h"
#include "graph/graph_trainer.h"
#include "make_trainer.h"
#include "tests/device/on_device.h"
#include "tests/device/waits.h"
#include "tests/support/changed_loss.h"
#include "tests/support/toy_tasks.h"

// What a device refuses: too much memory, and steps that no graph can hold. Changing shapes, too.

namespace duet {
namespace {

using testing::checked;
using testing::expect_same_weights;
using ::testing::HasSubstr;
using testing::is_rehearsal;
using testing::kWarmUp;
using testing::OnDevice;
using testing::ToyTask;
using testing::unchecked;

namespace allocator = c10::cuda::CUDACachingAllocator;

constexpr int64_t kMiB = int64_t{1} << 20;

int64_t reserved() { return allocator::getDeviceStats(0).reserved_bytes[0].current; }

// While it lives, this process gets no more than so many bytes of the device beyond what it holds.
class MemoryLimit {
 public:
  explicit MemoryLimit(int64_t more) {
    const auto total = static_cast<double>(at::getDeviceAllocator(at::kCUDA)->getMemoryInfo(0).second);
    allocator::setMemoryFraction(static_cast<double>(reserved() + more) / total, 0);
  }
  ~MemoryLimit() { allocator::setMemoryFraction(1, 0); }
  MemoryLimit(const MemoryLimit&) = delete;
  MemoryLimit& operator=(const MemoryLimit&) = delete;
};

std::unique_ptr<BaseTrainer> trainer_of(const ToyTask& task, Mode mode, const GraphOptions& graph = unchecked()) {
  seed_all(7);
  TrainerOptions options;
  options.device = "cuda";
  options.optimizer = AdamW{.lr = 1e-3};
  options.clip_grad = ClipNorm{0.5, 2.0};
  return make_trainer(mode, task.make(), options, graph);
}

GraphTrainer& graph(const std::unique_ptr<BaseTrainer>& trainer) { return dynamic_cast<GraphTrainer&>(*trainer); }

// One step for each size, the same batches for all trainers.
void steps(BaseTrainer& trainer, const ToyTask& task, const std::vector<int64_t>& sizes) {
  for (std::size_t n = 0; n < sizes.size(); ++n) trainer.step(task.batch(sizes[n], n));
}

// Made and trained in one go: what is drawn begins with the seed of its making.
std::unique_ptr<BaseTrainer> trained(const ToyTask& task, Mode mode, const std::vector<int64_t>& sizes,
                                     const GraphOptions& graph = unchecked()) {
  auto trainer = trainer_of(task, mode, graph);
  steps(*trainer, task, sizes);
  return trainer;
}

// The next trainer of the process captures, so nothing is left of a failure.
void expect_all_works() {
  const ToyTask task = testing::mlp_task();
  const auto trainer = trained(task, Mode::kGraph, std::vector<int64_t>(kWarmUp, 8));
  EXPECT_EQ(graph(trainer).report().back().state, "captured") << graph(trainer).report().back().reason;
}

class DeviceShapes : public OnDevice<> {};

TEST_F(DeviceShapes, EachIsCapturedOnceWithTheBitsOfEager) {
  std::vector<int64_t> sizes;
  for (int64_t n = 0; n < 60; ++n) sizes.push_back(std::vector<int64_t>{8, 3, 16, 5, 1}[n % 5]);
  for (const ToyTask& task : {testing::mlp_task(), testing::attention_task(), testing::lstm_task()}) {
    SCOPED_TRACE(task.name);
    const auto eager = trained(task, Mode::kEager, sizes);
    const auto captured = trained(task, Mode::kGraph, sizes, checked());
    expect_same_weights(*eager, *captured);
    int64_t with_replays = 0;
    for (const SignatureReport& report : graph(captured).report()) with_replays += report.replays > 0 ? 1 : 0;
    EXPECT_EQ(with_replays, 5);
  }
}

// Memory for one captured step: each new shape takes the place of the one before.
TEST_F(DeviceShapes, AFullCacheGivesUpTheOldest) {
  std::vector<int64_t> sizes;
  for (int64_t n = 0; n < 60; ++n) sizes.push_back((n / 10) % 2 == 0 ? 8 : 5);
  const ToyTask task = testing::mlp_task();
  GraphOptions small = unchecked();
  small.cache_bytes = 1;
  const auto eager = trained(task, Mode::kEager, sizes), captured = trained(task, Mode::kGraph, sizes, small);
  expect_same_weights(*eager, *captured);
  EXPECT_GT(graph(captured).replays(), 0);
}

class DeviceMemory : public OnDevice<> {};

TEST_F(DeviceMemory, AStepThatDoesNotFitIsAnErrorAndTheRunGoesOn) {
  for (const Mode mode : {Mode::kEager, Mode::kGraph}) {
    const ToyTask task = testing::mlp_task();
    const Batch too_big = task.batch(kMiB, 1);  // 64 MiB, and twice that behind the first layer
    const auto untouched = trained(task, mode, std::vector<int64_t>(2 * kWarmUp, 8));
    const auto trainer = trained(task, mode, std::vector<int64_t>(kWarmUp, 8));
    {
      const MemoryLimit limit(100 * kMiB);
      try {
        trainer->step(too_big);
        ADD_FAILURE() << "expected an error";
      } catch (const std::exception& error) {
        EXPECT_THAT(error.what(), HasSubstr("out of memory"));
      }
    }
    for (std::size_t n = kWarmUp; n < 2 * kWarmUp; ++n) trainer->step(task.batch(8, n));
    expect_same_weights(*untouched, *trainer);
  }
}

class DeviceCapture : public OnDevice<> {};

TEST_F(DeviceCapture, ShortOfMemoryItTakesWhatNobodyUses) {
  const ToyTask task = testing::mlp_task();
  const auto trainer = trained(task, Mode::kGraph, {8, 8, 8, 8, 8});
  at::empty({64 * kMiB}, at::TensorOptions(at::kCUDA).dtype(at::kByte));  // cached from here on, used by nobody
  {
    const MemoryLimit limit(0);
    steps(*trainer, task, {8, 8, 8});
  }
  EXPECT_EQ(graph(trainer).report().back().state, "captured") << graph(trainer).report().back().reason;
}

// Somebody else has all of the device: the steps run eager, with that reason, or what is freed is enough.
TEST_F(DeviceCapture, WithoutMemoryTheRunGoesOn) {
  const ToyTask task = testing::mlp_task();
  const auto eager = trained(task, Mode::kEager, std::vector<int64_t>(14, 8));
  const auto trainer = trained(task, Mode::kGraph, {8, 8, 8, 8});
  const at::Tensor others = at::empty({64 * kMiB}, at::TensorOptions(at::kCUDA).dtype(at::kByte));
  for (std::size_t n = 4; n < 14; ++n) {
    const MemoryLimit limit(0);
    trainer->step(task.batch(8, n));
  }
  expect_same_weights(*eager, *trainer);
  const SignatureReport report = graph(trainer).report().back();
  EXPECT_TRUE(report.state == "captured" || report.reason.find("memory") != std::string::npos) << report.reason;
  expect_all_works();
}

struct Refusal {
  std::string name;
  testing::ChangeLoss change;
  std::string reason;
  bool means_values = false;  // which a rehearsal has not
};

std::vector<Refusal> refusals() {
  return {
      {"AValueReadBack", [](const at::Tensor& loss) { return at::mul(loss, loss.item<double>()); },
       "_local_scalar_dense"},
      {"ACopyToTheHost", [](const at::Tensor& loss) { return at::add(loss, loss.detach().cpu().to(loss.device())); },
       "copies to the host"},
      {"AnOutputOfUnknownSize",
       [](const at::Tensor& loss) {
         return at::mul(loss, at::nonzero(at::add(loss.detach().reshape({1}), 1)).size(0));
       },
       "nonzero", /*means_values=*/true},
      {"AWaitForTheDevice",
       [](const at::Tensor& loss) {
         c10::cuda::device_synchronize();
         return at::mul(loss, 2);
       },
       "the device refused the capture"},
  };
}

// What GoogleTest says of a parameter.
void PrintTo(const Refusal& refusal, std::ostream* out) { *out << refusal.name; }

class DeviceRefusal : public OnDevice<::testing::TestWithParam<Refusal>> {
 protected:
  void SetUp() override {
    OnDevice::SetUp();
    if (is_rehearsal() && GetParam().means_values) GTEST_SKIP() << "no kernel gives a size";
  }
};

TEST_P(DeviceRefusal, IsNamedAndTheStepsRunEager) {
  const ToyTask task = testing::mlp_with_loss([] { return GetParam().change; });
  const std::vector<int64_t> sizes(2 * kWarmUp, 8);
  const auto eager = trained(task, Mode::kEager, sizes), refused = trained(task, Mode::kGraph, sizes);
  expect_same_weights(*eager, *refused);
  EXPECT_EQ(graph(refused).replays(), 0);
  EXPECT_EQ(graph(refused).report().back().state, "eager");
  EXPECT_THAT(graph(refused).report().back().reason, HasSubstr(GetParam().reason));
  expect_all_works();
}

INSTANTIATE_TEST_SUITE_P(Kinds, DeviceRefusal, ::testing::ValuesIn(refusals()),
                         [](const auto& info) { return info.param.name; });

class Waits : public OnDevice<> {};

// Or a count of none would mean nothing.
TEST_F(Waits, AreCounted) {
  const int64_t before = testing::waits();
  c10::cuda::device_synchronize();
  at::ones({4}, at::kCUDA).sum().item<float>();
  EXPECT_GE(testing::waits(), before + 2);
}

}  // namespace
}  // namespace duet
