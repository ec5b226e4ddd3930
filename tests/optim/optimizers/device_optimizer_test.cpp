#include <algorithm>
#include <string>
#include <vector>
#include <gtest/gtest.h>
#include "base/device.h"
#include "base/error.h"
#include "eager/eager_trainer.h"
#include "graph/graph_trainer.h"
#include "optim/optimizers/optimizer_kind.h"
#include "tests/support/called_ops.h"
#include "tests/support/expect_error.h"
#include "tests/support/log_lines.h"
#include "tests/support/modes.h"
#include "tests/support/toy_tasks.h"

// Which kernels step on a device, over a stand-in for its runtime: kernels do nothing there, their calls are real.

namespace duet {
namespace {

bool calls_fused_kernel() {
  return std::ranges::any_of(testing::CalledOps::counts(),
                             [](const auto& op) { return op.first.starts_with("aten::_fused_"); });
}

constexpr int64_t kSteps = 10;
constexpr int64_t kReplays = kSteps - 4;  // three eager steps and a recorded one come before

using Change = std::function<void(HyperParameters& numbers)>;

class DeviceOptimizer : public testing::InBothModes {
 protected:
  // Trains in the mode of the parameter; in graph mode the run has to take one capture.
  static void train(const OptimizerOptions& optimizer, const Change& change = {}) {
    seed_all(1);
    const testing::ToyTask task = testing::mlp_task();
    TrainerOptions options;
    options.device = "cuda";
    options.optimizer = optimizer;
    GraphOptions graph{.check = Check::kOff, .verify_interval = 0};
    std::unique_ptr<BaseTrainer> trainer;
    if (GetParam() == "eager") {
      trainer = std::make_unique<EagerTrainer>(task.make(), options);
    } else {
      trainer = std::make_unique<GraphTrainer>(task.make(), options, graph);
    }
    if (change) change(trainer->hyper_parameters());
    const testing::CalledOps counting;
    for (int64_t n = 0; n < kSteps; ++n) trainer->step(task.batch(8, 1));
    if (const auto* captured = dynamic_cast<GraphTrainer*>(trainer.get())) {
      ASSERT_EQ(captured->report().size(), 1U);
      EXPECT_EQ(captured->report()[0].state, "captured") << captured->report()[0].reason;
      EXPECT_EQ(captured->replays(), kReplays);
    }
  }
};

DUET_IN_BOTH_MODES(DeviceOptimizer);

double falling(std::size_t, int64_t applied) { return 0.5 / static_cast<double>(applied + 1); }

const std::vector<OptimizerOptions>& fused_optimizers() {
  static const std::vector<OptimizerOptions> all = {SGD{.momentum = 0.9}, Adam{}, AdamW{.amsgrad = true}, Adagrad{}};
  return all;
}

TEST_P(DeviceOptimizer, FusedKernelsStepWhereNoneButTheLearningRateMoves) {
  for (const OptimizerOptions& optimizer : fused_optimizers()) {
    SCOPED_TRACE(optimizer.type());
    train(optimizer);
    EXPECT_TRUE(calls_fused_kernel());
    train(optimizer, [](HyperParameters& numbers) { numbers.set_schedule("lr", falling); });
    EXPECT_TRUE(calls_fused_kernel());
  }
}

// Fused kernels would take the number from the host: a capture for each value.
TEST_P(DeviceOptimizer, AnyNumberMayFollowASchedule) {
  for (const OptimizerOptions& optimizer : fused_optimizers()) {
    for (const std::string number : {"weight_decay", "momentum", "beta1", "beta2"}) {
      if (numbers_in(optimizer).count(number) == 0) continue;
      SCOPED_TRACE(optimizer.type() + " " + number);
      train(optimizer, [&](HyperParameters& numbers) { numbers.set_schedule(number, falling); });
      EXPECT_FALSE(calls_fused_kernel());
      train(optimizer, [&](HyperParameters& numbers) {
        numbers.set_schedule(number, falling);
        numbers.clear_schedule(number);
      });
      EXPECT_TRUE(calls_fused_kernel());
    }
  }
}

TEST_P(DeviceOptimizer, ThatASlowerKernelStepsIsSaidOnce) {
  const auto said = [](const OptimizerOptions& optimizer) { return testing::stderr_of([&] { train(optimizer); }); };
  const std::string dampened = said(SGD{.momentum = 0.9, .dampening = 0.3});
  const std::size_t at = dampened.find("[Optimizer] SGD steps by tensor operators on cuda");
  EXPECT_NE(at, std::string::npos) << dampened;
  EXPECT_EQ(dampened.find("[Optimizer]", at + 1), std::string::npos);
  EXPECT_EQ(said(SGD{.momentum = 0.9}).find("[Optimizer]"), std::string::npos);
}

// The fused kernel would learn from the host that a step is the first, which the one before may be no more.
TEST_P(DeviceOptimizer, DampenedStepsAreCountedOnTheDevice) {
  train(SGD{.momentum = 0.9, .dampening = 0.3});
  EXPECT_FALSE(calls_fused_kernel());
}

TEST_P(DeviceOptimizer, AFusedKindWithoutAStepOverTensorsRefusesSchedules) {
  const auto kind = std::make_shared<OptimizerKind>(OptimizerKind{.name = "Own"});
  kind->slots = [](const OptimizerOptions&) { return std::vector<StateSlot>(); };
  kind->numbers = [](const OptimizerOptions&) { return std::map<std::string, double>{{"lr", 1}, {"rate", 1}}; };
  kind->kernel = [](const KernelCall&, const OptimizerOptions&) {};
  kind->fused = true;
  const auto schedule = [](HyperParameters& numbers) { numbers.set_schedule("rate", falling); };
  const OptimizerOptions own{std::shared_ptr<const OptimizerKind>(kind)};
  expect_error<ConfigError>([&] { train(own, schedule); },
                            {"schedule of rate", "Own", "cuda", "OptimizerKind::unfused"});
}

}  // namespace
}  // namespace duet
