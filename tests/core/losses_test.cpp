#include "core/losses.h"
#include <cmath>
#include <utility>
#include <vector>
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "tests/support/expect_error.h"

namespace duet {
namespace {

constexpr int64_t kNoLabel = 255;

TEST(Loss, WeighsABatchByItsClasses) {
  const at::Tensor target = at::tensor({0, 1, 1, -100}, at::kLong);
  EXPECT_EQ(loss_weight({}, target), 3);
  EXPECT_EQ(loss_weight({}, target, {.ignored = 1}), 2);
  EXPECT_EQ(loss_weight({.class_weights = {1, 50}}, target), 101);
  EXPECT_EQ(loss_weight({.loss = "focal"}, target), 3);
  EXPECT_EQ(loss_weight({.loss = "mse"}, target), 4);
  EXPECT_EQ(loss_weight({}, at::full({4, 2}, 0.5)), 4) << "shares of classes";
}

// A label is a share of 1.
TEST(Loss, FocalTakesSharesOfClasses) {
  at::manual_seed(5);
  const at::Tensor logits = at::randn({6, 3}, at::kDouble), labels = at::randint(3, {6}, at::kLong);
  const LossOptions focal{.loss = "focal", .focal_gamma = 1.5};
  const auto loss = [&](const at::Tensor& target) { return loss_of(focal, logits, target).item<double>(); };
  EXPECT_NEAR(loss(at::one_hot(labels, 3).to(at::kDouble)), loss(labels), 1e-12);
  const at::Tensor shares = at::softmax(at::randn({6, 3}, at::kDouble), 1);
  double wanted = 0;
  for (int64_t n = 0; n < 6; ++n) {
    for (int64_t c = 0; c < 3; ++c) {
      const double p = at::softmax(logits, 1)[n][c].item<double>();
      wanted -= shares[n][c].item<double>() * std::pow(1 - p, 1.5) * std::log(p) / 6;
    }
  }
  EXPECT_NEAR(loss(shares), wanted, 1e-12);
}

// What each loss refuses: that it has no value, or one that means nothing.
TEST(Loss, NamesWhatItCannotTake) {
  const at::Tensor logits = at::zeros({2, 3}), labels = at::zeros({2}, at::kLong);
  const at::Tensor several = at::tensor({0.F, 1.F, 1.F, 1.F, 0.F, 0.F}).view({2, 3});
  struct Case {
    LossOptions options;
    at::Tensor target;
    std::vector<std::string> parts;
  };
  const std::vector<Case> of_shapes = {
      {{}, labels.to(at::kInt), {"'target'", "Int", "cast: {target: int64}"}},
      {{.loss = "focal"}, at::zeros({2}), {"focal", "Float", "mse"}},
      {{}, at::zeros({2, 1}, at::kLong), {"[2, 1]", "[N, C, ...]"}},
      {{}, at::zeros({3}, at::kLong), {"[2, 3]", "[3]", "[N, C, ...]"}},
      {{}, several.to(at::kLong), {"[2, 3]", "{target: float32} at one-hot rows", "bce"}},
      {{.loss = "dice"}, labels, {"dice", "[N, C, H, W]"}},
      {{.class_weights = {1}}, labels, {"class_weights", "expected 3"}},
      {{.loss = "mse"}, at::zeros({2}), {"[2, 3]", "[2]", "num_classes to 1"}},
      {{.loss = "mse"}, at::zeros({3, 2}), {"[2, 3]", "[3, 2]"}},
      {{.loss = "hinge"}, at::zeros({2}), {"hinge", "huber"}}};
  for (const Case& one : of_shapes) {
    expect_error<ConfigError>([&] { loss_of(one.options, logits, one.target); }, one.parts);
  }
  const std::vector<Case> of_values = {
      {{}, several, {"cross_entropy", "[2, 3]", "add up to 1 to 2", "model.loss to bce", "or to mse, l1 or huber"}},
      {{.loss = "focal"}, at::tensor({1.5F, -0.5F, 0.F}).view({1, 3}), {"focal", "-0.5"}},
      {{.loss = "bce"}, at::tensor({0.0, 10.0}), {"bce", "0 to 10", "mse"}}};
  for (const Case& one : of_values) {
    expect_error<ConfigError>([&] { loss_weight(one.options, one.target); }, one.parts);
  }
  EXPECT_EQ(loss_weight({}, at::full({4, 3}, 1.0003F / 3)), 4) << "rounded";
  EXPECT_EQ(loss_weight({.loss = "bce"}, several), 6);
}

TEST(Loss, NamesLabelsOfNoClass) {
  const at::Tensor from_one = at::tensor({1, 2, 3, 1}, at::kLong);
  const std::vector<int64_t> ids = {7, 5, 9, 2};
  expect_error<DataError>([&] { loss_weight({.loss = "focal"}, from_one, {.classes = 3, .sample_ids = ids}); },
                          {"focal", "class 3", "sample 9", "0 to 2", "from 0", "num_classes to 4"});
  expect_error<DataError>([&] { loss_weight({}, at::tensor({0, -1, -100}, at::kLong), {.classes = 3}); },
                          {"class -1", "row 1"});
  const at::Tensor masks = at::zeros({2, 2, 2}, at::kLong);
  masks[1][0][1] = 9;
  masks[0].fill_(kNoLabel);
  expect_error<DataError>([&] { loss_weight({}, masks, {.ignored = kNoLabel, .classes = 3}); }, {"class 9", "row 1"});
  EXPECT_EQ(loss_weight({}, from_one, {.classes = 4}), 4);
}

// One pixel per class and image: probabilities by hand.
TEST(PixelLoss, EqualsItsClosedForms) {
  const double high = std::log(3.0);  // softmax of (log 3, 0): 0.75, 0.25
  const at::Tensor logits = at::tensor({high, 0.0, 0.0, high}, at::kDouble).view({1, 2, 1, 2});
  const at::Tensor target = at::tensor({0, 0}, at::kLong).view({1, 1, 2});
  const auto loss = [&](const char* name, const at::Tensor& wanted, double gamma = 2) {
    return loss_of({.loss = name, .focal_gamma = gamma}, logits, wanted, kNoLabel).item<double>();
  };
  const double first = -std::log(0.75), second = -std::log(0.25);
  EXPECT_NEAR(loss("cross_entropy", target), (first + second) / 2, 1e-12);
  EXPECT_NEAR(loss("focal", target), (0.0625 * first + 0.5625 * second) / 2, 1e-12);
  EXPECT_NEAR(loss("focal", target, 0), (first + second) / 2, 1e-12);
  // Class 0: 2 * 1 + 1 over 1 + 2 + 1; class 1: 1 over 1 + 0 + 1.
  EXPECT_NEAR(loss("dice", target), 1 - (3.0 / 4 + 1.0 / 2) / 2, 1e-12);
  const at::Tensor half = at::tensor({0, 255}, at::kLong).view({1, 1, 2});
  EXPECT_NEAR(loss("cross_entropy", half), first, 1e-12);
  EXPECT_NEAR(loss("focal", half), 0.0625 * first, 1e-12);
  EXPECT_NEAR(loss("dice", half), 1 - (2.5 / 2.75 + 1 / 1.25) / 2, 1e-12);
  EXPECT_EQ(loss("cross_entropy", at::full({1, 1, 2}, 255, at::kLong)), 0);
}

// As PyTorch's mean has them, which no graph can hold.
TEST(Loss, TakesClassWeightsAndLabelSmoothing) {
  at::manual_seed(4);
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{5, 3}, {2, 3, 4, 5}}) {
    std::vector<int64_t> without_classes = shape;
    without_classes.erase(without_classes.begin() + 1);
    const at::Tensor logits = at::randn(shape, at::kDouble), target = at::randint(3, without_classes, at::kLong);
    target[0].fill_(kNoLabel);
    for (const std::vector<double>& weights : {std::vector<double>(), {1, 0.5, 3}}) {
      const at::Tensor as_tensor = weights.empty() ? at::Tensor() : at::tensor(weights, at::kDouble);
      for (const double smoothing : {0.0, 0.2}) {
        const LossOptions options{.label_smoothing = smoothing, .class_weights = weights};
        const double wanted =
            at::cross_entropy_loss(logits, target, as_tensor, at::Reduction::Mean, kNoLabel, smoothing).item<double>();
        EXPECT_NEAR(loss_of(options, logits, target, kNoLabel).item<double>(), wanted, 1e-12) << shape << smoothing;
      }
    }
    const at::Tensor nothing = at::full({2, 4, 5}, kNoLabel, at::kLong);
    if (shape.size() == 4)
      EXPECT_EQ(loss_of({.class_weights = {1, 2, 3}}, logits, nothing, kNoLabel).item<double>(), 0);
  }
}

// More pixels than float16 counts.
TEST(Loss, TakesClassWeightsInHalfPrecision) {
  at::manual_seed(5);
  const at::Tensor logits = at::randn({5, 3, 128, 128}), target = at::randint(3, {5, 128, 128}, at::kLong);
  for (const at::ScalarType type : {at::kHalf, at::kBFloat16}) {
    const at::Tensor half = logits.to(type);
    const LossOptions options{.class_weights = {1, 0.5, 3}};
    const double wanted = loss_of(options, half.to(at::kDouble), target).item<double>();
    EXPECT_NEAR(loss_of(options, half, target).item<double>(), wanted, 1e-4 * wanted) << type;
  }
}

// As accumulation and ranks add them up, whose micro-batches have other numbers of labels that count.
TEST(PixelLoss, OfABatchIsThatOfItsMicroBatchesByTheirWeights) {
  at::manual_seed(2);
  const at::Tensor logits = at::randn({5, 3, 4, 6}, at::kDouble), target = at::randint(3, {5, 4, 6}, at::kLong);
  target[0].narrow(0, 0, 3).fill_(kNoLabel);
  target[3].fill_(kNoLabel);
  const std::vector<LossOptions> losses = {
      {}, {.class_weights = {1, 2, 5}}, {.label_smoothing = 0.1}, {.loss = "focal"}, {.loss = "dice"}};
  for (const LossOptions& options : losses) {
    double sum = 0, weights = 0;
    for (const auto& [from, to] : {std::pair{0, 2}, {2, 3}, {3, 5}}) {
      const at::Tensor part = target.slice(0, from, to);
      const double weight = loss_weight(options, part, {.ignored = kNoLabel});
      sum += weight * loss_of(options, logits.slice(0, from, to), part, kNoLabel).item<double>();
      weights += weight;
    }
    const double whole = loss_of(options, logits, target, kNoLabel).item<double>();
    EXPECT_NEAR(whole, sum / weights, 1e-12) << options.loss;
  }
}

}  // namespace
}  // namespace duet
