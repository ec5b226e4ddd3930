#include "base/device.h"
#include <cstdlib>
#include <c10/cuda/CUDAFunctions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "eager/eager_trainer.h"
#include "graph/graph_trainer.h"
#include "hooks/ema_hook.h"
#include "tests/device/on_device.h"
#include "tests/device/waits.h"
#include "tests/support/toy_tasks.h"

// Both modes on a GPU. scripts/gpu runs it there; without one it is skipped.

namespace duet {
namespace {

using testing::checked;
using testing::expect_same_weights;
using testing::is_rehearsal;
using testing::kWarmUp;
using testing::OnDevice;
using testing::ToyTask;
using testing::unchecked;

// DUET_DEVICE_STEPS: how many each run has.
int64_t steps() {
  const char* named = std::getenv("DUET_DEVICE_STEPS");
  return named == nullptr ? 500 : std::max<int64_t>(3 * kWarmUp, std::atoll(named));
}

struct Setting {
  std::string name;
  OptimizerOptions optimizer = AdamW{.lr = 1e-3};
  int64_t accumulate = 1;
  bool clip = false;
  std::optional<at::ScalarType> amp{};
  bool ema = false;
  bool splits = false;
  std::vector<std::string> scheduled{};  // numbers that fall at every step
};

const std::vector<Setting>& settings() {
  static const std::vector<Setting> all = {
      {"AdamW"},
      {.name = "SgdMomentum", .optimizer = SGD{.lr = 1e-2, .momentum = 0.9, .nesterov = true}, .clip = true},
      {.name = "Accumulate3", .accumulate = 3, .clip = true},
      {.name = "Bf16", .clip = true, .amp = at::kBFloat16},
      {.name = "Fp16", .accumulate = 2, .clip = true, .amp = at::kHalf},
      {.name = "Ema", .ema = true},
      {.name = "Splits", .clip = true, .splits = true},
      {.name = "Scheduled", .clip = true, .scheduled = {"lr", "weight_decay", "beta1"}},
      {.name = "Dampened", .optimizer = SGD{.lr = 1e-2, .momentum = 0.9, .dampening = 0.3}, .amp = at::kHalf},
  };
  return all;
}

// Halves large gradients, by a value that it reads back: host code between the kernels of a step.
class HalvingHook : public Hook {
 public:
  std::string name() const override { return "HalvingHook"; }
  void after_backward(TrainContext& context) override {
    const at::Tensor gradient = context.task.named_parameters().front().second.grad();
    if (gradient.abs().max().item<double>() > 0.01) gradient.mul_(0.5);
  }
};

template <class Trainer, class... Options>
std::unique_ptr<Trainer> trainer_of(const ToyTask& task, const Setting& setting, const Options&... more) {
  seed_all(7);
  TrainerOptions options;
  options.device = "cuda";
  options.optimizer = setting.optimizer;
  if (setting.clip) options.clip_grad = ClipNorm{0.5, 2.0};
  options.amp = setting.amp;
  auto trainer = std::make_unique<Trainer>(task.make(), options, more...);
  if (setting.ema) trainer->add_hook(std::make_unique<EMAHook>());
  HyperParameters& numbers = trainer->hyper_parameters();
  for (const std::string& name : setting.scheduled) {
    numbers.set_schedule(name, [start = numbers.get(0, name)](std::size_t, int64_t applied) {
      return start / (1 + 0.01 * static_cast<double>(applied));
    });
  }
  return trainer;
}

// Every sixth step is short, as at the end of an epoch.
std::vector<Batch> micro_batches_of(const ToyTask& task, int64_t accumulate, int64_t n) {
  std::vector<Batch> micro_batches;
  for (int64_t i = 0; i < accumulate; ++i) {
    micro_batches.push_back(task.batch(n % 6 == 5 && i == 0 ? 3 : 8, static_cast<uint64_t>(100 * n + i)));
  }
  return micro_batches;
}

std::vector<float> losses_of(BaseTrainer& trainer, const ToyTask& task, int64_t accumulate) {
  std::vector<at::Tensor> losses;
  for (int64_t n = 0; n < steps(); ++n) losses.push_back(trainer.step(micro_batches_of(task, accumulate, n)).loss);
  std::vector<float> numbers;
  for (const at::Tensor& loss : losses) numbers.push_back(loss.item<float>());
  return numbers;
}

using Parameters = std::tuple<std::size_t, std::size_t>;  // a toy task, a setting
class Device : public OnDevice<::testing::TestWithParam<Parameters>> {};

TEST_P(Device, GraphGivesTheBitsOfEager) {
  const ToyTask& task = testing::all_toy_tasks()[std::get<0>(GetParam())];
  const Setting& setting = settings()[std::get<1>(GetParam())];
  const auto eager = trainer_of<EagerTrainer>(task, setting);
  const std::vector<float> expected = losses_of(*eager, task, setting.accumulate);
  GraphOptions strict = checked();
  strict.fallback = Fallback::kStrict;
  const auto graph = trainer_of<GraphTrainer>(task, setting, strict);
  const std::vector<float> losses = losses_of(*graph, task, setting.accumulate);

  if (!is_rehearsal()) {
    EXPECT_EQ(losses, expected);
  }
  expect_same_weights(*eager, *graph);
  EXPECT_GE(graph->replays(), steps() - 3 * kWarmUp);
  for (const SignatureReport& report : graph->report()) EXPECT_NE(report.state, "eager") << report.reason;
}

TEST_P(Device, AReplayedStepWaitsForNothing) {
  const ToyTask& task = testing::all_toy_tasks()[std::get<0>(GetParam())];
  const Setting& setting = settings()[std::get<1>(GetParam())];
  if (setting.splits) GTEST_SKIP() << "its hook reads values back";
  const auto trainer = trainer_of<GraphTrainer>(task, setting, unchecked());
  std::vector<Batch> batches = micro_batches_of(task, setting.accumulate, 0);
  for (Batch& batch : batches) {
    batch = batch.mapped([](const at::Tensor& tensor) { return tensor.to(at::Device(at::kCUDA, 0)); });
  }
  for (int64_t n = 0; n < kWarmUp; ++n) trainer->step(batches);
  const int64_t replays = trainer->replays();
  c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_ERROR);
  const int64_t waits = testing::waits();
  EXPECT_NO_THROW(for (int64_t n = 0; n < 10; ++n) trainer->step(batches));
  EXPECT_EQ(testing::waits(), waits);
  c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_DISABLED);
  EXPECT_EQ(trainer->replays(), replays + 10);
}

INSTANTIATE_TEST_SUITE_P(Models, Device,
                         ::testing::Combine(::testing::Range<std::size_t>(0, 5), ::testing::Range<std::size_t>(0, 9)),
                         [](const auto& info) {
                           return testing::all_toy_tasks()[std::get<0>(info.param)].name +
                                  settings()[std::get<1>(info.param)].name;
                         });

}  // namespace
}  // namespace duet
