#include <limits>
#include <ATen/Functions.h>
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "optim/detail/amp.h"
#include "tests/support/expect_error.h"
#include "tests/support/modes.h"
#include "tests/support/over_tensors.h"
#include "tests/support/torch_reference.h"
#include "tests/support/trainer_runs.h"

// Loss scaling and what happens to steps that are not finite, in both modes.

namespace duet {
namespace {

using at::Tensor;
using testing::same_bits;

constexpr int kScaledSteps = 60;
const std::vector<std::vector<int64_t>> kShapes = {{4, 3}, {7}, {2, 2}, {1}, {5}};

// What torch.amp.GradScaler makes of the same steps on this machine (scaler_reference.py).
const std::string kScalerPath = testing::reference_path("optim/scaler.safetensors");

const StateDict& scaler_references() {
  static const StateDict all = testing::torch_reference(kScalerPath);
  return all;
}

// As in scaler_reference.py.
Tensor table(at::IntArrayRef shape, int64_t first, int64_t step, int64_t modulus, int64_t offset, int64_t divisor) {
  const int64_t count = c10::multiply_integers(shape);
  const Tensor index = at::add(at::mul(at::arange(count, at::kLong), step), first);
  return at::div(at::sub(at::remainder(index, modulus), offset).to(at::kFloat), divisor).reshape(shape);
}

// loss = sum of weight * slope: the slopes are the gradients.
class SlopeTask : public Task {
 public:
  SlopeTask() {
    for (std::size_t i = 0; i < kShapes.size(); ++i) {
      weights.emplace_back("w" + std::to_string(i),
                           table(kShapes[i], 5 * static_cast<int64_t>(i), 3, 13, 6, 16).requires_grad_(true));
    }
  }
  NamedTensors named_parameters() const override { return weights; }
  NamedTensors named_buffers() const override { return {}; }
  void train(bool) override {}
  void to(at::Device) override {}
  StepOutput training_step(const Batch& batch) override {
    Tensor loss = at::zeros({});
    for (const auto& [name, weight] : weights) loss = at::add(loss, at::mul(weight, batch[name]).sum());
    return {loss, {}};
  }
  NamedTensors weights;
};

Batch slopes(int64_t step, int64_t infinite = -1, double value = std::numeric_limits<double>::infinity()) {
  Batch batch;
  for (std::size_t i = 0; i < kShapes.size(); ++i) {
    Tensor slope = table(kShapes[i], 31 * step + 17 * static_cast<int64_t>(i), 7, 23, 11, 8);
    if (infinite == static_cast<int64_t>(i)) slope.reshape({-1})[-1].fill_(value);
    batch.set("w" + std::to_string(i), slope);
  }
  return batch;
}

// Parameter i in group i % count, with a learning rate of its own.
std::function<ParamGroups(Task&, const OptimizerOptions&)> groups_of(int64_t count) {
  return [count](Task& task, const OptimizerOptions&) {
    ParamGroups groups(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < kShapes.size(); ++i) {
      const std::size_t group = i % static_cast<std::size_t>(count);
      groups[group].numbers["lr"] = 0.01 * static_cast<double>(group + 1);
      groups[group].parameters.push_back(task.named_parameters()[i]);
    }
    return groups;
  };
}

Tensor flat(const NamedTensors& weights) {
  std::vector<Tensor> rows;
  for (const auto& entry : weights) rows.push_back(entry.second.detach().reshape({-1}));
  return at::cat(rows);
}

TrainerOptions scaled(const std::string& optimizer) {
  TrainerOptions options;
  options.optimizer = OptimizerOptions::of_type(optimizer);
  options.optimizer.set("lr", 0.01);
  if (optimizer == "AdamW") options.optimizer.set("weight_decay", 0.1);
  if (optimizer == "SGD") options.optimizer.set("momentum", 0.9);
  options.loss_scale = LossScaleOptions{.init_scale = 1024.0, .growth_interval = 5};
  return options;
}

using Parameters = std::tuple<std::string, std::string, int64_t>;  // mode, optimizer, groups

class ScalerGolden : public ::testing::TestWithParam<Parameters> {
 protected:
  void SetUp() override {
    if (scaler_references().tensors().empty()) GTEST_SKIP() << testing::no_reference(kScalerPath, "make_references.py");
  }
};

TEST_P(ScalerGolden, HasTheScalesSkipsAndWeightsOfTorch) {
  const auto& [mode, optimizer, group_count] = GetParam();
  const StateDict golden = scaler_references().part(optimizer + "_" + std::to_string(group_count));
  const Tensor scales = golden.tensor("scales");
  TrainerOptions options = scaled(optimizer);
  options.param_groups = groups_of(group_count);
  auto task = std::make_unique<SlopeTask>();
  const SlopeTask& lent = *task;
  const auto trainer = testing::make_trainer(mode, std::move(task), options);
  const std::map<int64_t, int64_t> infinite = {{7, 1}, {8, 4}, {23, 0}, {40, 2}};
  for (int64_t step = 0; step < kScaledSteps; ++step) {
    const auto found = infinite.find(step);
    const StepResult& output = trainer->step(slopes(step, found == infinite.end() ? -1 : found->second));
    ASSERT_EQ(output.log.back().first, "loss_scale");
    EXPECT_EQ(output.log.back().second.item<double>(), scales[step].item<double>()) << "step " << step;
  }
  EXPECT_EQ(trainer->hyper_parameters().applied(), kScaledSteps - 4);
  const Tensor weights = golden.tensor("weights"), trained = flat(lent.weights);
  if (optimizer == "RMSprop") {
    EXPECT_TRUE(at::allclose(trained, weights, 1e-6, 1e-9));
  } else {
    EXPECT_TRUE(at::equal(trained, weights));  // the same kernels
  }
}

std::string name_of(const ::testing::TestParamInfo<Parameters>& info) {
  return std::get<0>(info.param) + std::get<1>(info.param) + std::to_string(std::get<2>(info.param));
}

INSTANTIATE_TEST_SUITE_P(Modes, ScalerGolden,
                         ::testing::Combine(::testing::Values("eager", "graph"),
                                            ::testing::Values("AdamW", "SGD", "RMSprop"),
                                            ::testing::Values<int64_t>(1, 2, 5)),
                         name_of);

class NonFiniteSteps : public testing::InBothModes {};

DUET_IN_BOTH_MODES(NonFiniteSteps);

// What is left out must be as if it had never been there: weights, optimizer, schedule. Of every optimizer:
// EveryOptimizer.
TEST_P(NonFiniteSteps, ASkippedStepLeavesNoTrace) {
  const SGD dampened{.lr = 0.01, .momentum = 0.9, .dampening = 0.3};
  std::vector<OptimizerOptions> optimizers = {dampened, testing::over_tensors(dampened)};
  for (const char* type : {"AdamW", "RMSprop", "Muon"}) {
    optimizers.push_back(OptimizerOptions::of_type(type));
    optimizers.back().set("lr", 0.01);
  }
  for (const OptimizerOptions& optimizer : optimizers) {
    for (const int clip : {0, 1, 2}) {
      SCOPED_TRACE(optimizer.type() + ", clip " + std::to_string(clip));
      TrainerOptions options;
      options.optimizer = optimizer;
      options.non_finite = NonFinite::kSkip;
      if (clip == 1) options.clip_grad = ClipNorm{.max_norm = 0.5};
      if (clip == 2) options.clip_grad = ClipValue{0.25};
      const auto trained = [&](bool with_bad_steps) {
        auto trainer = testing::make_trainer(GetParam(), std::make_unique<SlopeTask>(), options);
        trainer->hyper_parameters().set_schedule(
            "lr", [](std::size_t, int64_t applied) { return 0.01 / (1.0 + static_cast<double>(applied)); });
        for (int64_t step = 0; step < 12; ++step) {
          if (with_bad_steps && step % 3 == 0) trainer->step(slopes(step + 100, step % 5));
          if (with_bad_steps && step == 6) trainer->step(slopes(step, 2, std::nan("")));
          trainer->step(slopes(step));
        }
        EXPECT_EQ(trainer->hyper_parameters().applied(), 12);
        EXPECT_EQ(trainer->hyper_parameters().get(0, "lr"), 0.01 / 12);
        return trainer->state_dict();
      };
      testing::expect_same_bits(trained(false), trained(true));
    }
  }
}

TEST_P(NonFiniteSteps, RaisingLeavesTheWeightsOfTheLastGoodStep) {
  for (const bool clip : {false, true}) {
    TrainerOptions options;
    options.non_finite = NonFinite::kRaise;
    if (clip) options.clip_grad = ClipNorm{};
    auto trainer = testing::make_trainer(GetParam(), std::make_unique<SlopeTask>(), options);
    for (int64_t step = 0; step < 6; ++step) trainer->step(slopes(step));
    const Tensor before = trainer->weights().tensor("w1").clone();
    expect_error<NonFiniteError>([&] { trainer->step(slopes(6, 3)); },
                                 {"'w3'", "after 6 good steps", "non_finite: skip"});
    EXPECT_TRUE(same_bits(before, trainer->weights().tensor("w1")));
    EXPECT_EQ(trainer->progress().step, 6);
    trainer->step(slopes(6));  // the caller may go on
    EXPECT_FALSE(same_bits(before, trainer->weights().tensor("w1")));
  }
}

// A static scale never backs off, so an infinite gradient is no passing thing. It lowers a dynamic one, where a loss
// that is not finite is a failure all the same.
TEST_P(NonFiniteSteps, RaisingMindsWhatTheScaleDoesNotExplain) {
  for (const bool dynamic : {false, true}) {
    TrainerOptions options;
    options.non_finite = NonFinite::kRaise;
    options.loss_scale = LossScaleOptions{.dynamic = dynamic, .init_scale = dynamic ? 3e38 : 96.0};
    auto trainer = testing::make_trainer(GetParam(), std::make_unique<SlopeTask>(), options);
    const int64_t good = dynamic ? 5 : 4;  // the first overflows the dynamic one
    for (int64_t step = 0; step < good; ++step) trainer->step(slopes(step));
    EXPECT_EQ(trainer->hyper_parameters().applied(), 4);
    expect_error<NonFiniteError>([&] { trainer->step(slopes(good, 3)); }, {"'w3'", "after 4 good steps"});
  }
}

TEST_P(NonFiniteSteps, AStaticScaleStaysAndSkips) {
  TrainerOptions options = scaled("AdamW");
  options.loss_scale = LossScaleOptions{.dynamic = false, .init_scale = 96.0};
  auto trainer = testing::make_trainer(GetParam(), std::make_unique<SlopeTask>(), options);
  for (int64_t step = 0; step < 8; ++step) {
    EXPECT_EQ(trainer->step(slopes(step, step == 5 ? 0 : -1)).log.back().second.item<double>(), 96.0);
  }
  EXPECT_EQ(trainer->hyper_parameters().applied(), 7);
}

TEST_P(NonFiniteSteps, ClippingKnowsTheUnscaledNorm) {
  std::vector<Tensor> weights;
  for (const double scale : {0.0, 4096.0}) {
    TrainerOptions options;
    options.clip_grad = ClipNorm{.max_norm = 0.5};
    if (scale > 0) options.loss_scale = LossScaleOptions{.init_scale = scale};
    auto trainer = testing::make_trainer(GetParam(), std::make_unique<SlopeTask>(), options);
    Tensor norm;
    for (int64_t step = 0; step < 8; ++step) norm = trainer->step(slopes(step)).grad_norm;
    double expected = 0;
    const Batch last = slopes(7);
    for (const auto& item : last.items()) expected += item.second.square().sum().item<double>();
    EXPECT_NEAR(norm.item<double>(), std::sqrt(expected), 1e-5);
    weights.push_back(trainer->weights().tensor("w0").clone());
  }
  EXPECT_LE(at::max(at::abs(at::sub(weights[0], weights[1]))).item<double>(), 1e-6);
}

TEST_P(NonFiniteSteps, AResumeContinuesScaleAndSkips) {
  TrainerOptions options = scaled("AdamW");
  const auto run = [](BaseTrainer& trainer, int64_t from, int64_t to) {
    for (int64_t step = from; step < to; ++step) trainer.step(slopes(step, step % 7 == 3 ? 1 : -1));
  };
  auto whole = testing::make_trainer(GetParam(), std::make_unique<SlopeTask>(), options);
  run(*whole, 0, 30);
  auto first = testing::make_trainer(GetParam(), std::make_unique<SlopeTask>(), options);
  run(*first, 0, 17);
  auto second =
      testing::make_trainer(GetParam() == "eager" ? "graph" : "eager", std::make_unique<SlopeTask>(), options);
  second->load_state_dict(first->state_dict());
  run(*second, 17, 30);
  testing::expect_same_bits(whole->state_dict(), second->state_dict());
}

// Of this thread.
struct AutocastState {
  bool enabled = at::autocast::is_autocast_enabled(at::kCPU);
  at::ScalarType dtype = at::autocast::get_autocast_dtype(at::kCPU);
  bool cache = at::autocast::is_autocast_cache_enabled();
  bool operator==(const AutocastState&) const = default;
};

TEST(AutocastGuard, RestoresWhatItFoundAlsoOnAThrow) {
  const AutocastState outside;
  try {
    const AutocastGuard guard(at::kCPU, at::kBFloat16);
    const AutocastState inside;
    EXPECT_TRUE(inside.enabled);
    EXPECT_EQ(inside.dtype, at::kBFloat16);
    EXPECT_FALSE(inside.cache);
    {
      const AutocastGuard nothing(at::kCPU, std::nullopt);
      EXPECT_TRUE(AutocastState() == inside);
      const AutocastGuard nested(at::kCPU, at::kHalf);
      EXPECT_EQ(AutocastState().dtype, at::kHalf);
    }
    EXPECT_TRUE(AutocastState() == inside);
    throw std::runtime_error("from within");
  } catch (const std::runtime_error&) {
  }
  EXPECT_TRUE(AutocastState() == outside);
}

}  // namespace
}  // namespace duet
