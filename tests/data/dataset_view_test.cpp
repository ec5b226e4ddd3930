#include <algorithm>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "data/dataset.h"
#include "data/sampler.h"
#include "data/transform.h"
#include "tests/support/expect_error.h"

namespace duet {
namespace {

// Samples whose "image" is their number, from `first` on, and whose class is that number modulo 3.
std::shared_ptr<const Dataset> numbers(int64_t first, int64_t count) {
  const at::Tensor all = at::arange(first, first + count, at::kLong);
  return std::make_shared<TensorDataset>(NamedTensors{{"image", all.to(at::kFloat)}, {"target", all.remainder(3)}});
}

std::vector<int64_t> images(const Dataset& dataset, const std::vector<int64_t>& indices) {
  const at::Tensor values = dataset.get(indices)["image"].to(at::kLong);
  return {values.const_data_ptr<int64_t>(), values.const_data_ptr<int64_t>() + values.numel()};
}

TEST(SubsetDataset, GivesItsSamplesInTheirOrder) {
  const SubsetDataset subset(numbers(0, 10), {7, 2, 2});
  EXPECT_EQ(subset.size(), 3);
  EXPECT_EQ(images(subset, {0, 1, 2}), (std::vector<int64_t>{7, 2, 2}));
  EXPECT_EQ(subset.labels(), (std::vector<int64_t>{1, 2, 2}));
  expect_error<DataError>([] { SubsetDataset(numbers(0, 3), {3}); }, {"[SubsetDataset]", "3", "0 to 2"});
  expect_error<DataError>([] { SubsetDataset(numbers(0, 3), {}); }, {"[SubsetDataset]", "no index"});
  expect_error<ConfigError>([] { SubsetDataset(nullptr, {0}); }, {"[DatasetView]", "no dataset"});
}

TEST(RepeatDataset, GivesAllSeveralTimes) {
  const RepeatDataset repeated(numbers(0, 3), 2);
  EXPECT_EQ(repeated.size(), 6);
  EXPECT_EQ(images(repeated, {0, 2, 3, 5}), (std::vector<int64_t>{0, 2, 0, 2}));
  EXPECT_EQ(repeated.labels().size(), 6U);
  EXPECT_EQ(repeated.get({})["image"].size(0), 0);
  expect_error<ConfigError>([] { RepeatDataset(numbers(0, 3), 0); }, {"[RepeatDataset]", "at least 1"});
  expect_error<ConfigError>([] { RepeatDataset(numbers(0, 3), int64_t{1} << 62); }, {"[RepeatDataset]", "3 samples"});
}

// Adds a random number.
class Jitter : public Transform {
 public:
  void apply(Batch& sample, SampleRandom& random) const override {
    sample.set("image", sample["image"] + random.uniform());
  }
};

std::shared_ptr<const Dataset> jittered(std::shared_ptr<const Dataset> dataset) {
  std::vector<std::unique_ptr<const Transform>> transforms;
  transforms.push_back(std::make_unique<Jitter>());
  return std::make_shared<TransformedDataset>(std::move(dataset), std::move(transforms));
}

TEST(RepeatDataset, DrawsAnewEachTime) {
  const RepeatDataset repeated(jittered(numbers(0, 3)), 2);
  const auto drawn = [&](int64_t index, int64_t pass) {
    return repeated.draw({index}, {{5, pass}})["image"].item<double>();
  };
  EXPECT_EQ(drawn(1, 0), drawn(1, 0));
  EXPECT_NE(drawn(1, 0), drawn(4, 0));
  EXPECT_NE(drawn(4, 0), drawn(1, 1));
}

TEST(RepeatDataset, MixesTheSamplesOfABatch) {
  Transforms transforms;
  transforms.push_back(make_mixup({1.0, 3}));
  const auto mixed = std::make_shared<TransformedDataset>(numbers(0, 3), std::move(transforms));
  EXPECT_TRUE(
      at::equal(RepeatDataset(mixed, 2).get({3, 4})["target"], mixed->draw({0, 1}, {{0, 1}, {0, 1}})["target"]));
}

TEST(ConcatDataset, GivesOneAfterTheOther) {
  const ConcatDataset all({numbers(0, 3), numbers(10, 4), numbers(20, 1)});
  EXPECT_EQ(all.size(), 8);
  EXPECT_EQ(images(all, {7, 0, 3, 6, 2}), (std::vector<int64_t>{20, 0, 10, 13, 2}));
  EXPECT_EQ(all.labels(), (std::vector<int64_t>{0, 1, 2, 1, 2, 0, 1, 2}));
  expect_error<DataError>([&] { all.get({8}); }, {"[ConcatDataset]", "8", "0 to 7"});
}

TEST(ConcatDataset, PartsDrawOtherNumbersThanTheNextSeeds) {
  const auto drawn = [](uint64_t seed, int64_t index) {
    const ConcatDataset all({jittered(numbers(0, 1)), jittered(numbers(0, 1))});
    return all.draw({index}, {{seed, 0}})["image"].item<double>();
  };
  EXPECT_EQ(drawn(5, 1), drawn(5, 1));
  EXPECT_NE(drawn(5, 1), drawn(5, 0));
  EXPECT_NE(drawn(5, 1), drawn(6, 0));
}

TEST(ConcatDataset, NamesWhatDoesNotFitTogether) {
  const auto of = [](const at::Tensor& image, const char* name) {
    return std::make_shared<TensorDataset>(NamedTensors{{name, image}});
  };
  const auto with = [&](const at::Tensor& image, const char* name = "image") {
    return ConcatDataset({of(at::zeros({2, 3}), "image"), of(image, name)});
  };
  expect_error<DataError>([&] { with(at::zeros({2, 4})).get({0, 2}); },
                          {"'image' of sample 2", "[4]", "[3]", "Resize"});
  expect_error<DataError>([&] { with(at::zeros({2, 3}, at::kByte)).get({0, 3}); }, {"'image' of sample 3", "cast"});
  expect_error<DataError>([&] { with(at::zeros({2, 3}), "x").get({0, 2}); }, {"sample 2", "'image'", "rename"});
  expect_error<ConfigError>([] { ConcatDataset({}); }, {"[ConcatDataset]", "no dataset"});
}

TEST(SampleWeights, MakeClassesAsFrequent) {
  std::vector<int64_t> labels(100, 0);
  for (std::size_t i = 0; i < 10; ++i) labels[i] = 1;
  EpochSampler sampler(sample_weights(labels), 4000, 3);
  std::vector<int64_t> first = sampler.next(4000);
  const auto rare = std::count_if(first.begin(), first.end(), [](int64_t index) { return index < 10; });
  EXPECT_NEAR(static_cast<double>(rare), 2000, 6 * std::sqrt(1000.0));  // six standard deviations
  EXPECT_TRUE(sampler.next(1).empty());
  sampler.start_epoch(1);
  EXPECT_NE(sampler.next(4000), first);
  EpochSampler again(sample_weights(labels), 4000, 3);
  EXPECT_EQ(again.next(4000), first);
}

TEST(SampleWeights, FollowTheClassesWeights) {
  const std::vector<int64_t> labels = {0, 1, 2, 2};
  EXPECT_EQ(sample_weights(labels, {1, 0, 3}), (std::vector<double>{1, 0, 3, 3}));
  EpochSampler sampler(sample_weights(labels, {0, 1, 0}), 50, 1);
  EXPECT_EQ(sampler.next(50), std::vector<int64_t>(50, 1));
  EXPECT_EQ(sample_weights({-100, 1, 1}), (std::vector<double>{0, 0.5, 0.5}));
  expect_error<ConfigError>([] { sample_weights({-100, -1}); }, {"found -1"});
  expect_error<ConfigError>([] { sample_weights({0, 1'000'000'000'000}); }, {"found 1000000000000"});
  expect_error<ConfigError>([&] { sample_weights(labels, {1, 1}); }, {"2 class_weights", "expected 3"});
  expect_error<ConfigError>([&] { sample_weights({}); }, {"no classes", "default"});
  expect_error<ConfigError>([] { EpochSampler({0.0, 0.0}, 5, 0); }, {"only weights of 0"});
  expect_error<ConfigError>([] { EpochSampler({1.0, -1.0}, 5, 0); }, {"-1", "from 0"});
  expect_error<ConfigError>([] { EpochSampler({1e308, 1e308}, 5, 0); }, {"sum is not finite"});
}

}  // namespace
}  // namespace duet
