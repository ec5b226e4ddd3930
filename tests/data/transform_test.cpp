#include "data/transform.h"
#include <set>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "data/data_loader.h"
#include "tests/support/expect_error.h"

namespace duet {
namespace {

// Pictures [3, 6, 8] whose red channel counts pixels, masks that count them too, labels 0, 1, 2, ...
std::shared_ptr<const Dataset> pictures(int64_t count) {
  const at::Tensor pixels = at::arange(48, at::kFloat).view({1, 1, 6, 8}).expand({count, 3, 6, 8}) / 48;
  const at::Tensor mask = at::arange(48, at::kLong).view({1, 6, 8}).expand({count, 6, 8});
  return std::make_shared<TensorDataset>(
      NamedTensors{{"image", pixels}, {"mask", mask}, {"target", at::arange(count, at::kLong)}});
}

std::vector<SampleDraw> of_all(std::size_t count, uint64_t seed, int64_t pass) { return {count, {seed, pass}}; }

template <class... Each>
TransformedDataset through(std::shared_ptr<const Dataset> dataset, Each... transforms) {
  Transforms list;
  (list.push_back(std::move(transforms)), ...);
  return TransformedDataset(std::move(dataset), std::move(list));
}

TransformedDataset through(const NamedTensors& tensors, std::unique_ptr<const Transform> transform) {
  return through(std::make_shared<TensorDataset>(tensors), std::move(transform));
}

template <class... Each>
TransformedDataset through(std::unique_ptr<const Transform> first, Each... transforms) {
  return through(pictures(4), std::move(first), std::move(transforms)...);
}

TEST(SampleRandom, FollowsFromSeedPassIndexAndOccurrence) {
  const auto first = [](uint64_t seed, int64_t pass, int64_t index, int64_t occurrence) {
    return SampleRandom({seed, pass, occurrence}, index).uniform();
  };
  EXPECT_EQ(first(1, 2, 3, 4), first(1, 2, 3, 4));
  std::set<double> seen;
  for (int64_t number = 0; number < 10'000; ++number) {
    seen.insert(first(static_cast<uint64_t>(number) / 1000, number / 100 % 10, number / 10 % 10, number % 10));
  }
  EXPECT_EQ(seen.size(), 10'000U);
}

TEST(Transforms, PictureAndMaskMoveTogether) {
  const TransformedDataset data =
      through(make_crop({{4, 4}, 1, true}), make_random_flip({0.5, "horizontal"}), make_random_flip({0.5, "vertical"}));
  for (int64_t pass = 0; pass < 20; ++pass) {
    const Batch batch = data.draw({0, 1, 2, 3}, of_all(4, 5, pass));
    const at::Tensor numbers = (batch["image"].select(1, 0) * 48).round().to(at::kLong);
    const at::Tensor inside = batch["mask"] != 255;
    EXPECT_TRUE(at::equal(numbers.masked_select(inside), batch["mask"].masked_select(inside)));
    EXPECT_EQ(numbers.masked_select(inside.logical_not()).abs().sum().item<int64_t>(), 0) << "padding is black";
  }
}

TEST(Transforms, NormalizeIsByChannelAndTakesBytes) {
  const Batch batch = through(make_normalize({{0.5, 0.25, 0}, {1, 2, 4}})).get({0});
  const at::Tensor plain = pictures(1)->get({0})["image"];
  const at::Tensor mean = at::tensor({0.5F, 0.25F, 0.0F}).view({1, 3, 1, 1});
  const at::Tensor std = at::tensor({1.0F, 2.0F, 4.0F}).view({1, 3, 1, 1});
  EXPECT_TRUE(at::equal(batch["image"], (plain - mean) / std));
  const TransformedDataset bytes =
      through({{"image", at::full({1, 1, 2, 2}, 51, at::kByte)}}, make_normalize({{0}, {1}}));
  EXPECT_TRUE(at::allclose(bytes.get({0})["image"], at::full({1, 1, 2, 2}, 0.2F)));
}

// Mean and std of bytes, as mmsegmentation writes them, would make pictures in [0, 1] a constant.
TEST(Transforms, NormalizeRefusesAMeanOfBytesForPicturesInTheRangeOfOne) {
  const auto of_bytes = [](const at::Tensor& images) {
    return through({{"image", images}}, make_normalize({{123.675, 116.28, 103.53}, {58.395, 57.12, 57.375}}));
  };
  const at::Tensor unit = at::arange(24, at::kFloat).view({2, 3, 2, 2}) / 22.999;  // a little above 1, as by Resize
  const TransformedDataset wrong = of_bytes(unit);  // at each try: a loader may look at the first sample in advance
  for (const int64_t index : {1, 1, 0}) {
    expect_error<ConfigError>([&] { wrong.get({index}); }, {"[Normalize]", "'image'", "divide both by 255"});
  }
  expect_error<ConfigError>([&] { of_bytes((unit * 254).to(at::kByte)).get({1}); }, {"divide both by 255"});
  // Of floating bytes a black picture tells nothing, and a nearly black one after another is one.
  const TransformedDataset dark = of_bytes(at::tensor({0.0F, 200.0F, 0.5F}).view({3, 1, 1, 1}).expand({3, 3, 2, 2}));
  for (const int64_t index : {0, 1, 2}) EXPECT_LT(dark.get({index})["image"].min().item<float>(), 2);
}

// Of what was moved and normalized people see what was moved.
TEST(Transforms, ShowPicturesAsTheyWereBeforeNormalize) {
  const auto normalize = [] { return make_normalize({{0.5, 0.25, 0}, {1, 2, 4}}); };
  const TransformedDataset data = through(make_resize({{12, 4}}), normalize());
  const at::Tensor resized = through(make_resize({{12, 4}})).get({1, 3})["image"];
  const Batch batch = data.get({1, 3}), shown = data.denormalized(batch, {1, 3});
  EXPECT_FALSE(at::allclose(batch["image"], resized));
  EXPECT_TRUE(at::allclose(shown["image"], resized, 1e-5, 1e-6));
  EXPECT_TRUE(at::equal(shown["mask"], batch["mask"]));
  EXPECT_EQ(shown["target"].data_ptr(), batch["target"].data_ptr());
  const Batch half = data.denormalized(
      batch.mapped([](const at::Tensor& tensor) { return tensor.is_floating_point() ? tensor.to(at::kHalf) : tensor; }),
      {1, 3});
  EXPECT_TRUE(at::allclose(half["image"], resized, 1e-2, 1e-2));

  const auto plain = pictures(4);
  const auto normalized = std::make_shared<TransformedDataset>(through(plain, normalize()));
  const auto expect_plain = [&](const Dataset& view, const std::vector<int64_t>& indices) {
    const at::Tensor image = view.denormalized(view.get(indices), indices)["image"];
    EXPECT_TRUE(at::allclose(image, plain->get({0})["image"].expand_as(image), 1e-5, 1e-6));
  };
  expect_plain(SubsetDataset(normalized, {2, 0}), {1, 0});
  expect_plain(RepeatDataset(normalized, 3), {11, 0});
  expect_plain(ConcatDataset({plain, normalized, plain}), {0, 5, 11});
}

TEST(Transforms, CutoutJitterAndCropsStayInRange) {
  const TransformedDataset data =
      through(make_random_resized_crop({{6, 6}}), make_color_jitter({0.5, 0.5, 0.5}), make_cutout({3, 1.0}));
  for (int64_t pass = 0; pass < 20; ++pass) {
    const at::Tensor image = data.draw({0, 1, 2, 3}, of_all(4, 9, pass))["image"];
    EXPECT_EQ(image.sizes(), at::IntArrayRef({4, 3, 6, 6}));
    EXPECT_GE(image.min().item<double>(), 0);
    EXPECT_LE(image.max().item<double>(), 1);
    EXPECT_TRUE((image == 0).any().item<bool>());
  }
}

// Of Beta(a, a): mean 1/2, variance 1 / (4 (2 a + 1)).
TEST(Transforms, MixupDrawsItsShareFromTheBetaDistribution) {
  for (const double alpha : {1e-3, 0.2, 1.0, 20.0, 1e6}) {
    const TransformedDataset mixed = through(make_mixup({alpha, 4}));
    double sum = 0, squares = 0;
    constexpr int kDraws = 2000;
    for (int pass = 0; pass < kDraws; ++pass) {
      const double share = mixed.draw({0, 1}, of_all(2, 9, pass))["target"][0][0].item<double>();
      ASSERT_TRUE(share >= 0 && share <= 1) << alpha;
      sum += share, squares += (share - 0.5) * (share - 0.5);
    }
    const double variance = 1 / (4 * (2 * alpha + 1));
    EXPECT_NEAR(sum / kDraws, 0.5, 6 * std::sqrt(variance / kDraws)) << alpha;
    EXPECT_NEAR(squares / kDraws / variance, 1, 0.25) << alpha;
  }
}

TEST(Transforms, MixupMixesPicturesAndTargetsByOneShare) {
  const Batch batch = through(make_mixup({1.0, 4})).draw({0, 1, 2, 3}, of_all(4, 3, 1));
  const at::Tensor target = batch["target"];
  EXPECT_EQ(target.sizes(), at::IntArrayRef({4, 4}));
  EXPECT_TRUE(at::allclose(target.sum(1), at::ones({4})));
  const double share = target[1][1].item<double>();
  EXPECT_NEAR(target[1][0].item<double>(), 1 - share, 1e-6);
  const at::Tensor one_hot = through(make_one_hot({4})).get({0, 1, 2, 3})["target"];
  EXPECT_TRUE(at::equal(one_hot, at::eye(4)));
}

// Adds a random number.
class Noise : public Transform {
 public:
  void apply(Batch& sample, SampleRandom& random) const override {
    sample.set("image", sample["image"] + random.uniform());
  }
};

std::shared_ptr<const Dataset> noisy(std::shared_ptr<const Dataset> dataset) {
  return std::make_shared<TransformedDataset>(through(std::move(dataset), std::make_unique<Noise>()));
}

std::shared_ptr<const Dataset> zeros(int64_t count) {
  return std::make_shared<TensorDataset>(NamedTensors{{"image", at::zeros({count}, at::kDouble)}});
}

TEST(Transforms, OfATransformedDatasetDrawNumbersOfTheirOwn) {
  const double once = noisy(zeros(1))->get({0})["image"].item<double>();
  const double twice = noisy(noisy(zeros(1)))->get({0})["image"].item<double>();
  EXPECT_NE(twice, 2 * once);
  EXPECT_NE(twice, once);
}

// The samples of an endless weighted order, each with the noise that it got, as `world_size` ranks read it in batches.
std::vector<std::pair<int64_t, double>> drawn(int64_t count, int workers, int64_t batch_size, int64_t world_size,
                                              int64_t resume_after = -1) {
  std::vector<std::unique_ptr<DataLoader>> ranks;
  const auto make = [&](int64_t rank) {
    auto sampler = std::make_unique<InfiniteSampler>(EpochSampler({1, 1, 10, 1}, 10, 3));
    return std::make_unique<DataLoader>(noisy(zeros(4)),
                                        std::make_unique<DistributedSampler>(std::move(sampler), rank, world_size),
                                        DataLoaderOptions{.batch_size = batch_size, .seed = 3, .num_workers = workers});
  };
  for (int64_t rank = 0; rank < world_size; ++rank) ranks.push_back(make(rank));
  std::vector<std::pair<int64_t, double>> all;
  for (int64_t step = 0; std::ssize(all) < count; ++step) {
    for (int64_t rank = 0; rank < world_size; ++rank) {
      auto& loader = ranks[static_cast<std::size_t>(rank)];
      if (step == resume_after) {
        auto resumed = make(rank);
        resumed->load_state_dict(loader->state_dict());
        loader = std::move(resumed);
      }
      const Batch batch = *loader->next();
      for (int64_t row = 0; row < batch.size(); ++row) {
        all.emplace_back(batch.sample_ids()[static_cast<std::size_t>(row)], batch["image"][row].item<double>());
      }
    }
  }
  all.resize(static_cast<std::size_t>(count));
  return all;
}

TEST(Transforms, OfASampleThatIsDrawnAgainDifferWhateverWorkersBatchesAndRanks) {
  constexpr int64_t kCount = 36;  // over the borders of passes of 10
  const auto expected = drawn(kCount, 0, 1, 1);
  EXPECT_EQ(std::set(expected.begin(), expected.end()).size(), expected.size()) << "every draw has its own noise";
  for (const auto& [index, noise] : expected) {
    if (index == 2) {
      EXPECT_EQ(noise, SampleRandom({3, 0}, 2).uniform()) << "the first one of a pass keeps its numbers";
      break;
    }
  }
  EXPECT_EQ(drawn(kCount, 2, 1, 1), expected);
  EXPECT_EQ(drawn(kCount, 0, 7, 1), expected) << "batches run across the borders of passes";
  EXPECT_EQ(drawn(kCount, 2, 4, 1), expected);
  EXPECT_EQ(drawn(kCount, 0, 3, 2), expected);
  EXPECT_EQ(drawn(kCount, 1, 2, 3), expected);
  EXPECT_EQ(drawn(kCount, 0, 7, 1, 2), expected) << "resumed";
  EXPECT_EQ(drawn(kCount, 2, 2, 2, 3), expected) << "resumed";
}

// Gives the first of the samples alone.
class Shortened : public EpochSampler {
 public:
  Shortened() : EpochSampler(4, false, 0) {}
  std::vector<int64_t> next(int64_t count) override {
    std::vector<int64_t> indices = EpochSampler::next(count);
    indices.resize(1);
    return indices;
  }
};

TEST(Transforms, NeedDrawsThatFitTheSamplersIndices) {
  DataLoader loader(noisy(zeros(4)), std::make_unique<Shortened>(), {.batch_size = 2});
  expect_error<ConfigError>([&] { loader.next(); }, {"[Sampler]", "2 draws()", "1 indices"});
}

TEST(Transforms, NameWhatDoesNotFit) {
  expect_error<DataError>([] { through(make_crop({{9, 9}})).get({0}); }, {"[Crop]", "6 x 8", "9 x 9"});
  expect_error<ConfigError>([] { through(make_normalize({{1, 2}, {1}})).get({0}); }, {"2 means", "3 channels"});
  expect_error<ConfigError>([] { make_resize({}); }, {"size"});
  expect_error<ConfigError>([] { make_resize({{65536, 65536}}); }, {"65536 x 65536"});
  expect_error<ConfigError>([] { make_one_hot({int64_t{1} << 30}); }, {"num_classes"});
  expect_error<DataError>([] { through(make_one_hot({3})).get({3}); }, {"[OneHot]", "label 3", "num_classes 3"});
  expect_error<DataError>([] { through(make_normalize({{0.5}, {0.1}}), make_color_jitter({0.1})).get({0}); },
                          {"[ColorJitter]", "before Normalize"});
  expect_error<ConfigError>([] { make_resize({{1, 2, 3}}); }, {"3 numbers"});
  expect_error<ConfigError>([] { make_random_flip({1.5}); }, {"chance is 1.5"});
  expect_error<ConfigError>([] { make_random_flip({0.5, "diagonal"}); }, {"direction", "diagonal"});
}

TEST(Transforms, MixupMixesBytesToo) {
  const at::Tensor bytes = at::tensor({0, 255}, at::kByte).view({2, 1, 1, 1});
  const Batch batch =
      through({{"image", bytes}, {"target", at::arange(2, at::kLong)}}, make_mixup({1.0, 2})).get({0, 1});
  EXPECT_TRUE(at::allclose(batch["image"].flatten(), batch["target"].select(1, 1)));
}

}  // namespace
}  // namespace duet
