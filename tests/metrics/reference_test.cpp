// Figures against numpy's, pictures against Pillow's: make_references.py writes them right before.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include "data/dataset.h"
#include "data/transform.h"
#include "metrics/probability_metric.h"
#include "tests/support/torch_reference.h"

namespace duet {
namespace {

class References : public ::testing::Test {
 protected:
  static StateDict read(const std::string& name) {
    return testing::torch_reference(testing::reference_path("metrics/" + name));
  }
  static int64_t cases_in(const StateDict& references, const std::string& field) {
    int64_t count = 0;
    while (references.tensors().contains(std::to_string(count) + "." + field)) ++count;
    return count;
  }
};

// In batches of 17.
double figure_of(Metric&& metric, const at::Tensor& scores, const at::Tensor& targets) {
  for (int64_t from = 0; from < targets.size(0); from += 17) {
    const int64_t to = std::min<int64_t>(from + 17, targets.size(0));
    metric.add({{"target", targets.slice(0, from, to)}}, {{"prediction", scores.slice(0, from, to)}}, 1);
  }
  return metric.compute().begin()->second;
}

TEST_F(References, RankingAndCalibrationEqualNumpys) {
  const StateDict references = read("figures.safetensors");
  if (references.tensors().empty()) GTEST_SKIP() << testing::no_reference("figures", "metrics/make_references.py");
  const int64_t cases = cases_in(references, "values");
  ASSERT_GE(cases, 6);
  for (int64_t number = 0; number < cases; ++number) {
    const auto at = [&](const char* field) { return references.tensor(std::to_string(number) + "." + field); };
    const at::Tensor scores = at("scores"), targets = at("targets"), values = at("values");
    const auto expected = [&](int64_t i) { return values[i].item<double>(); };
    const int64_t classes = scores.size(1);
    EXPECT_NEAR(figure_of(Auroc({.num_classes = classes}), scores, targets), expected(0), 1e-12) << number;
    EXPECT_NEAR(figure_of(AveragePrecision({.num_classes = classes}), scores, targets), expected(1), 1e-12) << number;
    EXPECT_NEAR(figure_of(CalibrationError(), scores, targets), expected(2), 1e-12) << number;
    EXPECT_NEAR(figure_of(CalibrationError({.bins = 4}), scores, targets), expected(3), 1e-12) << number;
  }
}

// As scikit-learn's average="macro" has them.
TEST_F(References, RankingOfSeveralLabelsEqualsNumpys) {
  const StateDict references = read("figures.safetensors").part("labels");
  if (references.tensors().empty()) GTEST_SKIP() << testing::no_reference("figures", "metrics/make_references.py");
  const at::Tensor scores = references.tensor("scores"), values = references.tensor("values");
  for (const at::ScalarType type : {at::kLong, at::kFloat, at::kBool}) {
    const at::Tensor targets = references.tensor("targets").to(type);
    EXPECT_NEAR(figure_of(Auroc({.num_classes = 4}), scores, targets), values[0].item<double>(), 1e-12) << type;
    EXPECT_NEAR(figure_of(AveragePrecision({.num_classes = 4}), scores, targets), values[1].item<double>(), 1e-12)
        << type;
  }
}

Batch through(std::unique_ptr<const Transform> transform, const at::Tensor& image, const at::Tensor& mask) {
  std::vector<std::unique_ptr<const Transform>> list;
  list.push_back(std::move(transform));
  const NamedTensors tensors = {{"image", image}, {"mask", mask}};
  return TransformedDataset(std::make_shared<TensorDataset>(tensors), std::move(list)).draw({0}, {{.seed = 5}});
}

TEST_F(References, ResizeAndRotationEqualPillows) {
  const StateDict references = read("pictures.safetensors");
  if (references.tensors().empty()) GTEST_SKIP() << testing::no_reference("pictures", "metrics/make_references.py");
  const int64_t cases = cases_in(references, "image");
  ASSERT_GE(cases, 4);
  for (int64_t number = 0; number < cases; ++number) {
    const auto at = [&](const char* field) { return references.tensor(std::to_string(number) + "." + field); };
    const at::Tensor resized = at("resized");
    const Batch made = through(make_resize({{resized.size(1), resized.size(2)}}), at("image"), at("mask"));
    EXPECT_LT((made["image"][0] - resized).abs().max().item<double>(), 1e-5) << number;
    EXPECT_TRUE(at::equal(made["mask"][0], at("labels"))) << number;

    const at::Tensor inside = at("inside").to(at::kBool);
    EXPECT_GT(inside.sum().item<int64_t>(), inside.numel() / 5);
    const at::Tensor turned = through(make_random_rotation({.degrees = 60}), at("image"), at("mask"))["image"][0];
    EXPECT_LT((turned - at("turned")).abs().masked_select(inside).max().item<double>(), 1e-4) << number;
  }
}

}  // namespace
}  // namespace duet
