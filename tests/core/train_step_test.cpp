#include "core/detail/train_step.h"
#include <cmath>
#include <functional>
#include <limits>
#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/sample_state.h"

// One step: how the gradients of several micro-batches come together, what clipping does with them, what is refused.

namespace duet {
namespace {

using at::Tensor;

// A task over one weight [3, 4] and whatever loss a test gives.
class LambdaTask : public Task {
 public:
  using Loss = std::function<StepOutput(const Tensor& weight, const Batch& batch)>;
  explicit LambdaTask(Loss loss) : loss_(std::move(loss)) {}
  NamedTensors named_parameters() const override { return {{"weight", values}}; }
  NamedTensors named_buffers() const override { return {}; }
  void train(bool) override {}
  void to(at::Device) override {}
  StepOutput training_step(const Batch& batch) override { return loss_(values, batch); }
  std::string graph_key() const override { return key; }

  Tensor values = at::div(at::arange(12, at::kFloat), 16).reshape({3, 4}).requires_grad_(true);
  std::string key;

 private:
  Loss loss_;
};

struct Points : StepObserver {};

// Weights as BaseTrainer finds them.
MicroBatches window_of(const std::vector<Batch>& batches, const std::vector<double>& weights = {}) {
  MicroBatches micro_batches{batches, weights, 0};
  if (weights.empty()) {
    for (const Batch& batch : batches) micro_batches.weights.push_back(static_cast<double>(batch.size()));
  }
  for (const double weight : micro_batches.weights) micro_batches.total += weight;
  return micro_batches;
}

StepResult run(TrainStep& rule, const MicroBatches& micro_batches) {
  Points points;
  rule.begin(micro_batches);
  StepResult output = rule.run(micro_batches, points);
  rule.end();
  return output;
}

TrainerOptions sgd(double lr, std::optional<ClipGrad> clip = {}) {
  TrainerOptions options;
  options.optimizer = SGD{.lr = lr};
  options.clip_grad = clip;
  return options;
}

Tensor rows(int64_t columns) {
  return at::div(at::sub(at::remainder(at::mul(at::arange(12 * columns, at::kFloat), 7), 23), 11), 8)
      .reshape({12, columns});
}

double largest_difference(const Tensor& a, const Tensor& b) {
  return at::max(at::abs(at::sub(a.detach(), b.detach()))).item<double>();
}

std::vector<Batch> split(const NamedTensors& tensors, const std::vector<int64_t>& sizes) {
  std::vector<Batch> batches;
  int64_t start = 0;
  for (const int64_t size : sizes) {
    Batch batch;
    for (const auto& [name, tensor] : tensors) batch.set(name, tensor.narrow(0, start, size).clone());
    batches.push_back(batch);
    start += size;
  }
  return batches;
}

TEST(TrainStep, UnevenMicroBatchesEqualOneBigBatch) {
  const NamedTensors data = {{"x", rows(4)}, {"y", rows(3)}};
  const auto loss = [](const Tensor& weight, const Batch& batch) {
    const Tensor predicted = at::tanh(at::linear(batch["x"], weight));
    return StepOutput{at::mse_loss(predicted, batch["y"]), {{"mean", predicted.mean()}, {"first", batch["x"].mean()}}};
  };
  std::vector<Tensor> weights, losses, means, gradients;
  for (const std::vector<int64_t>& sizes :
       std::vector<std::vector<int64_t>>{{12}, {4, 4, 4}, {5, 4, 3}, {1, 11}, {7, 2, 1, 1, 1}}) {
    auto task = std::make_unique<LambdaTask>(loss);
    const LambdaTask& lent = *task;
    TrainStep rule(std::move(task), at::kCPU, sgd(1.0));
    for (int step = 0; step < 3; ++step) {
      const StepResult output = run(rule, window_of(split(data, sizes)));
      EXPECT_EQ(output.loss.dim(), 0);
      EXPECT_FALSE(output.loss.requires_grad());
      EXPECT_FALSE(output.grad_norm.defined());
      if (step < 2) continue;
      losses.push_back(output.loss);
      EXPECT_EQ(output.log.at(0).first, "mean");
      means.push_back(at::add(output.log.at(0).second, output.log.at(1).second));
    }
    weights.push_back(lent.values);
    gradients.push_back(lent.values.grad());
  }
  for (std::size_t i = 1; i < weights.size(); ++i) {
    EXPECT_LE(largest_difference(weights[0], weights[i]), 1e-6);
    EXPECT_LE(largest_difference(gradients[0], gradients[i]), 1e-6);
    EXPECT_LE(largest_difference(losses[0], losses[i]), 1e-6);
    EXPECT_LE(largest_difference(means[0], means[i]), 1e-6);
  }
}

// The gradient is `gradient`, whatever the weight.
LambdaTask::Loss linear_loss(const Tensor& gradient) {
  return [gradient](const Tensor& weight, const Batch&) { return StepOutput{at::mul(weight, gradient).sum(), {}}; };
}

const Batch kOne = {{"x", at::ones({1})}};

TEST(TrainStep, ClippingScalesToTheNorm) {
  Tensor gradient = at::zeros({3, 4});
  gradient[0][0].fill_(3);
  gradient[2][3].fill_(-4);
  struct Case {
    double type, norm, max_norm;
  };
  const double inf = std::numeric_limits<double>::infinity();
  for (const Case& c : {Case{2, 5, 1}, Case{1, 7, 0.5}, Case{inf, 4, 2}, Case{3, std::cbrt(91.0), 1}, Case{2, 5, 100},
                        Case{2, 5, 5.01}}) {
    SCOPED_TRACE(std::to_string(c.type) + " " + std::to_string(c.max_norm));
    auto task = std::make_unique<LambdaTask>(linear_loss(gradient));
    const LambdaTask& lent = *task;
    const Tensor before = lent.values.detach().clone();
    TrainStep rule(std::move(task), at::kCPU, sgd(1.0, ClipNorm{c.max_norm, c.type}));
    const StepResult output = run(rule, window_of({kOne}));
    EXPECT_EQ(output.grad_norm.dim(), 0);
    EXPECT_NEAR(output.grad_norm.item<double>(), c.norm, 1e-6 * c.norm);
    const double factor = std::min(1.0, c.max_norm / (c.norm + 1e-6));  // torch.nn.utils.clip_grad_norm_
    const Tensor clipped = at::mul(gradient, factor);
    EXPECT_LE(largest_difference(lent.values, at::sub(before, clipped)), 1e-6);
    EXPECT_LE(largest_difference(lent.values.grad(), clipped), 2e-6);
    if (c.max_norm > c.norm)
      expect_same_tensor("weight", lent.values, at::sub(before, gradient));  // not a bit is touched
  }
}

// Golden: timm 1.0.31, adaptive_clip_grad([w], 0.02, 1e-3) with these weights and gradients (support/peer_values.py).
TEST(TrainStep, AdaptiveClippingIsThatOfTimm) {
  const Tensor gradient =
      at::tensor({3., 0., 0., 0., 0., 0.005, -0.003, 0., 0., 1., -2., -4.}, at::kFloat).view({3, 4});
  const Tensor golden = at::tensor({0.004677071701735258, 0., 0., 0., 0., 0.004999999888241291, -0.003000000026077032,
                                    0., 0., 0.005218442063778639, -0.010436884127557278, -0.020873768255114555},
                                   at::kFloat)
                            .view({3, 4});
  for (const bool is_excluded : {false, true}) {
    for (const bool logs : {false, true}) {
      auto task = std::make_unique<LambdaTask>(linear_loss(gradient));
      const LambdaTask& lent = *task;
      TrainerOptions options = sgd(1.0, ClipAdaptive{.clip_factor = 0.02, .eps = 1e-3});
      if (is_excluded) std::get<ClipAdaptive>(*options.clip_grad).exclude = {"we*"};
      options.log_grad_norm = logs;
      TrainStep rule(std::move(task), at::kCPU, options);
      const StepResult output = run(rule, window_of({kOne}));
      EXPECT_LE(largest_difference(lent.values.grad(), is_excluded ? gradient : golden), is_excluded ? 0 : 1e-8);
      EXPECT_EQ(output.grad_norm.defined(), logs);
      if (logs) EXPECT_NEAR(output.grad_norm.item<double>(), gradient.norm().item<double>(), 1e-6);
    }
  }
}

TEST(TrainStep, AdaptiveClippingRefusesAPatternThatFitsNothing) {
  const auto make = [] {
    TrainStep(std::make_unique<LambdaTask>(linear_loss(at::ones({3, 4}))), at::kCPU,
              sgd(1.0, ClipAdaptive{.exclude = {"weight", "head.*"}}));
  };
  expect_error<ConfigError>(make, {"[ClipAdaptive]", "'head.*'", "fits no trained parameter"});
}

TEST(TrainStep, ALossThatCannotBeTrainedOnIsRefused) {
  const auto expect_refused = [](const LambdaTask::Loss& loss, const std::vector<std::string>& parts) {
    auto task = std::make_unique<LambdaTask>(loss);
    const LambdaTask& lent = *task;
    const Tensor before = lent.values.detach().clone();
    TrainStep rule(std::move(task), at::kCPU, sgd(1.0));
    expect_error<ConfigError>([&] { run(rule, window_of({kOne})); }, parts);
    expect_same_tensor("weight", before, lent.values);
  };
  expect_refused([](const Tensor& w, const Batch&) { return StepOutput{at::mul(w, 2), {}}; },
                 {"Float[3, 4]", "take its mean"});
  expect_refused([](const Tensor&, const Batch&) { return StepOutput{}; }, {"no loss"});
  expect_refused([](const Tensor& w, const Batch&) { return StepOutput{w.detach().sum(), {}}; }, {"[Task]", "loss"});
  expect_refused([](const Tensor& w, const Batch&) { return StepOutput{w.sum().to(at::kLong), {}}; }, {"Long"});
  expect_refused(
      [](const Tensor& w, const Batch&) {
        const at::NoGradGuard no_grad;
        return StepOutput{w.sum(), {}};
      },
      {"[Task]", "loss"});
}

TEST(TrainStep, TheKeyHoldsWhatAReplayWouldFreeze) {
  auto task = std::make_unique<LambdaTask>(linear_loss(at::ones({3, 4})));
  LambdaTask& lent = *task;
  TrainerOptions options;
  TrainStep rule(std::move(task), at::kCPU, options);
  const auto key = [&rule] {
    std::vector<int64_t> key;
    rule.append_key(key);
    return key;
  };
  const std::vector<int64_t> first = key();
  for (const std::string name : {"lr", "weight_decay", "beta1", "beta2", "eps"}) {
    rule.set(0, name, rule.get(0, name) / 2);
    EXPECT_EQ(key(), first) << name;  // a tensor: not frozen
  }
  rule.set_schedule("lr", [](std::size_t, int64_t) { return 0.1; });
  EXPECT_NE(key(), first);  // the step looks the number up now
  rule.clear_schedule("lr");
  const std::vector<int64_t> before = key();
  lent.key = "second phase";
  EXPECT_NE(key(), before);
  lent.key.clear();
  lent.values.requires_grad_(false);
  EXPECT_NE(key(), before);
}

TEST(TrainStep, OptionsAndTasksThatCannotWorkAreRefused) {
  TrainerOptions half = sgd(0.1);
  half.amp = at::kDouble;
  expect_error<ConfigError>([&] { half.validate(); }, {"amp"});
  for (const ClipGrad& clip : {ClipGrad(ClipNorm{0, 2}), ClipGrad(ClipValue{0})}) {
    expect_error<ConfigError>([&] { sgd(0.1, clip).validate(); }, {"[Clip"});
  }
  expect_error<ConfigError>([] { TrainStep(nullptr, at::kCPU, TrainerOptions()); }, {"task is null"});
  auto frozen = std::make_unique<LambdaTask>(linear_loss(at::ones({3, 4})));
  frozen->values.requires_grad_(false);
  expect_error<ConfigError>([&] { TrainStep(std::move(frozen), at::kCPU, TrainerOptions()); },
                            {"no parameter that requires a gradient"});
}

StepOutput sum_loss(const Tensor& weight, const Batch& batch) { return {at::mul(weight, batch["x"]).sum(), {}}; }

MicroBatches window_of_value(double value) { return window_of({Batch{{"x", at::full({3, 4}, value)}}}); }

TEST(TrainStep, AParameterThatIsUnfrozenLaterIsNotSilentlyLeftOut) {
  class TwoTask : public LambdaTask {
   public:
    using LambdaTask::LambdaTask;
    NamedTensors named_parameters() const override { return {{"weight", values}, {"stem", stem}}; }
    Tensor stem = at::ones({2});
  };
  auto task = std::make_unique<TwoTask>(sum_loss);
  const TwoTask& lent = *task;
  TrainStep rule(std::move(task), at::kCPU, sgd(0.1));
  run(rule, window_of_value(1));
  lent.stem.requires_grad_(true);
  expect_error<ConfigError>([&] { run(rule, window_of_value(1)); }, {"'stem'", "was frozen", "make the trainer while"});
}

TEST(TrainStep, AnStepWithoutDenseGradientsIsRefused) {
  for (const std::optional<ClipGrad>& clip : {std::optional<ClipGrad>(), {ClipNorm{}}}) {
    const Tensor other = at::ones({1}).requires_grad_(true);
    TrainStep none(
        std::make_unique<LambdaTask>([&](const Tensor&, const Batch&) { return StepOutput{other.sum(), {}}; }),
        at::kCPU, sgd(0.1, clip));
    expect_error<ConfigError>([&] { run(none, window_of_value(1)); }, {"no trainable parameter", "gradient"});
    TrainStep sparse(std::make_unique<LambdaTask>([](const Tensor& weight, const Batch&) {
                       return StepOutput{at::embedding(weight, at::arange(2), -1, false, /*sparse=*/true).sum(), {}};
                     }),
                     at::kCPU, sgd(0.1, clip));
    expect_error<ConfigError>([&] { run(sparse, window_of_value(1)); }, {"'weight'", "Sparse", "dense"});
  }
}

TEST(TrainStep, AScheduleThatLeavesTheRangeIsRefusedAtTheStepThatWouldUseIt) {
  auto task = std::make_unique<LambdaTask>(sum_loss);
  TrainerOptions options;
  options.optimizer = AdamW{.lr = 0.1};
  TrainStep rule(std::move(task), at::kCPU, options);
  rule.set_schedule("beta1", [](std::size_t, int64_t applied) { return 0.5 + 0.125 * static_cast<double>(applied); });
  for (int n = 0; n < 4; ++n) run(rule, window_of_value(1));
  EXPECT_EQ(rule.get(0, "beta1"), 0.875);
  expect_error<ConfigError>([&] { run(rule, window_of_value(1)); }, {"beta1 = 1", "[0, 1)"});
}

TEST(TrainStep, ALoadedStateHasNoMarkOfAStepThatWasNotFinite) {
  TrainerOptions options = sgd(0.1);
  options.non_finite = NonFinite::kRaise;
  TrainStep step(std::make_unique<LambdaTask>(sum_loss), at::kCPU, options);
  const NamedTensors state = step.mutable_state();  // the mark comes last
  const at::Tensor mark = state.back().second;
  mark.fill_(1);  // as on a device, where it is read now and then
  step.load_state_dict(step.state_dict());
  EXPECT_EQ(mark.item<float>(), 0);
  run(step, window_of_value(1));
  EXPECT_EQ(step.applied(), 1);
}

}  // namespace
}  // namespace duet
