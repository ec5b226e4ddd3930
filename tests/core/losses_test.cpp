#include "core/losses.h"
#include <cmath>
#include <functional>
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

// As PyTorch's mean has them, which no graph can hold.
TEST(Loss, SmoothsLabels) {
  at::manual_seed(3);
  const at::Tensor logits = at::randn({5, 3}, at::kDouble), target = at::tensor({0, 2, -100, 1, 1}, at::kLong);
  for (const std::vector<double>& weights : {std::vector<double>(), std::vector<double>{1, 0.5, 3}}) {
    const at::Tensor as_tensor = weights.empty() ? at::Tensor() : at::tensor(weights, at::kDouble);
    const at::Tensor wanted = at::cross_entropy_loss(logits, target, as_tensor, at::Reduction::Mean, -100, 0.2);
    const LossOptions options{.label_smoothing = 0.2, .class_weights = weights};
    EXPECT_NEAR(loss_of(options, logits, target).item<double>(), wanted.item<double>(), 1e-12) << weights.size();
  }
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

TEST(Loss, TakesRowsThatAreDistributions) {
  const at::Tensor several = at::tensor({0.F, 1.F, 1.F, 1.F, 0.F, 0.F}).view({2, 3});
  const at::Tensor negative = at::tensor({1.5F, -0.5F, 0.F}).view({1, 3});
  for (const char* name : {"cross_entropy", "focal"}) {
    expect_error<ConfigError>([&] { loss_weight({.loss = name}, several); },
                              {name, "[2, 3]", "add up to 1 to 2", "model.loss to bce", "or to mse, l1 or huber"});
    expect_error<ConfigError>([&] { loss_weight({.loss = name}, negative); }, {name, "-0.5"});
    EXPECT_EQ(loss_weight({.loss = name}, at::full({4, 3}, 1.0003F / 3)), 4) << "rounded";
    for (const at::ScalarType type : {at::kByte, at::kLong}) {
      expect_error<ConfigError>([&] { loss_of({.loss = name}, at::zeros({2, 3}), several.to(type)); },
                                {name, "a number for each class", "cast: {target: float32}", "bce"});
    }
  }
  EXPECT_EQ(loss_weight({.loss = "bce"}, several), 6);
}

TEST(Loss, NamesLabelsOfNoClass) {
  const at::Tensor from_one = at::tensor({1, 2, 3, 1}, at::kLong);
  const std::vector<int64_t> ids = {7, 5, 9, 2};
  for (const char* name : {"cross_entropy", "focal"}) {
    expect_error<DataError>([&] { loss_weight({.loss = name}, from_one, {.classes = 3, .sample_ids = ids}); },
                            {name, "class 3", "sample 9", "from 1 to 3", "0 to 2", "from 0", "num_classes to 4"});
  }
  expect_error<DataError>([&] { loss_weight({}, at::tensor({0, -1, -100}, at::kLong), {.classes = 3}); },
                          {"class -1", "row 1", "from -1 to 0"});
  const at::Tensor masks = at::zeros({2, 2, 2}, at::kLong);
  masks[1][0][1] = 9;
  masks[0].fill_(kNoLabel);
  expect_error<DataError>([&] { loss_weight({}, masks, {.ignored = kNoLabel, .classes = 3}); },
                          {"class 9", "row 1", "from 0 to 9", "correct the labels"});
  EXPECT_EQ(loss_weight({}, from_one, {.classes = 4}), 4);
}

TEST(Loss, NamesWhatItCannotTake) {
  const at::Tensor logits = at::zeros({2, 3});
  const auto error = [](const std::function<void()>& call, const std::vector<std::string>& parts) {
    expect_error<ConfigError>(call, parts);
  };
  error([&] { loss_of({}, logits, at::zeros({2}, at::kInt)); }, {"'target'", "Int", "cast: {target: int64}"});
  error([&] { loss_of({.loss = "focal"}, logits, at::zeros({2})); }, {"focal", "Float", "mse"});
  error([&] { loss_of({}, logits, at::zeros({2})); }, {"task: classification", "cast: {target: int64}", "class 0"});
  error([&] { loss_of({}, logits, at::zeros({2, 1}, at::kLong)); }, {"[2, 1]", "array[:, 0]"});
  error([&] { loss_of({}, logits, at::zeros({3}, at::kLong)); }, {"[2, 3]", "[3]", "[N, C, ...]"});
  error([&] { loss_of({.loss = "dice"}, logits, at::zeros({2}, at::kLong)); }, {"dice", "[N, C, H, W]"});
  error([&] { loss_of({.class_weights = {1}}, logits, at::zeros({2}, at::kLong)); }, {"class_weights", "expected 3"});
  error([&] { loss_of({.loss = "mse"}, logits, at::zeros({2})); }, {"[2, 3]", "[2]", "num_classes to 1"});
  error([&] { loss_of({.loss = "mse"}, logits, at::zeros({3, 2})); }, {"[2, 3]", "[3, 2]"});
  error([&] { loss_of({.loss = "hinge"}, logits, at::zeros({2})); }, {"hinge", "huber"});
  error([] { loss_weight({.loss = "bce"}, at::tensor({0.0, 10.0})); }, {"bce", "0 to 10", "mse"});
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

// As PyTorch's mean has them.
TEST(PixelLoss, TakesClassWeightsAndLabelSmoothing) {
  at::manual_seed(4);
  const at::Tensor logits = at::randn({2, 3, 4, 5}, at::kDouble), target = at::randint(3, {2, 4, 5}, at::kLong);
  target[0][0].fill_(kNoLabel);
  const std::vector<double> weights = {1, 0.5, 3};
  const at::Tensor as_tensor = at::tensor(weights, at::kDouble);
  for (const double smoothing : {0.0, 0.2}) {
    const LossOptions options{.label_smoothing = smoothing, .class_weights = weights};
    const at::Tensor wanted =
        at::cross_entropy_loss(logits, target, as_tensor, at::Reduction::Mean, kNoLabel, smoothing);
    EXPECT_NEAR(loss_of(options, logits, target, kNoLabel).item<double>(), wanted.item<double>(), 1e-12) << smoothing;
  }
  const at::Tensor nothing = at::full({2, 4, 5}, kNoLabel, at::kLong);
  EXPECT_EQ(loss_of({.class_weights = weights}, logits, nothing, kNoLabel).item<double>(), 0);
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
