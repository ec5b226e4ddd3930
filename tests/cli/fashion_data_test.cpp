#include <cmath>
#include <filesystem>
#include <numeric>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "cli/zoo/fashion_mnist.h"
#include "cli/zoo/fashion_scenes.h"
#include "tests/support/expect_error.h"
#include "tests/support/idx_file.h"
#include "tests/support/temp_dir.h"

namespace duet {
namespace {

// Four images of 2 x 3 whose pixels count from 0 on, in steps of 10.
class FashionMnistTest : public ::testing::Test {
 protected:
  FashionMnistTest() {
    for (int i = 0; i < 24; ++i) pixels_.push_back(static_cast<char>(i * 10));
    dir_.write("train-images-idx3-ubyte", idx_bytes(0x08, {4, 2, 3}, pixels_));
    dir_.write("train-labels-idx1-ubyte", idx_bytes(0x08, {4}, std::string("\x03\x00\x09\x01", 4)));
    options_.root = dir_.path().string();
  }

  TempDir dir_;
  std::string pixels_;
  FashionMnistOptions options_;
};

TEST_F(FashionMnistTest, YieldsNormalizedImagesAndTargets) {
  const FashionMnist data(options_);
  ASSERT_EQ(data.size(), 4);
  const Batch batch = data.get({2, 0, 2});
  const at::Tensor raw = at::arange(24, at::kFloat).mul(10).view({4, 1, 2, 3}).index_select(0, at::tensor({2, 0, 2}));
  const at::Tensor expected = raw.div(255).sub(0.2860).div(0.3530);
  EXPECT_EQ(batch["image"].scalar_type(), at::kFloat);
  EXPECT_TRUE(at::equal(batch["image"], expected));
  EXPECT_TRUE(at::equal(batch["target"], at::tensor({9, 3, 9}, at::kLong)));
}

TEST_F(FashionMnistTest, TakesExplicitFilesAndALimit) {
  options_.labels = dir_.write("other", idx_bytes(0x08, {4}, std::string("\x01\x01\x02\x02", 4)));
  options_.limit = 3;
  const FashionMnist data(options_);
  EXPECT_EQ(data.size(), 3);
  EXPECT_EQ(data.get({2})["target"].item<int64_t>(), 2);
  expect_error<DataError>([&] { data.get({0, 3}); }, {"[FashionMnist]", "index 3", "0 to 2"});
  expect_error<DataError>([&] { data.get({-1}); }, {"index -1"});
  options_.limit = 100;
  EXPECT_EQ(FashionMnist(options_).size(), 4);
}

TEST_F(FashionMnistTest, NamesWhatIsWrongWithAFile) {
  options_.num_classes = 9;
  expect_error<DataError>([&] { FashionMnist{options_}; },
                          {dir_ / "train-labels-idx1-ubyte", "label 9", "index 2", "0 to 8"});
  options_.labels = dir_.write("short", idx_bytes(0x08, {3}, "\1\1\1"));
  expect_error<DataError>([&] { FashionMnist{options_}; }, {"4 images", "3 labels"});
  options_.labels = options_.images = dir_ / "train-labels-idx1-ubyte";
  expect_error<DataError>([&] { FashionMnist{options_}; }, {"images", "[N, H, W]"});
  options_.labels = options_.images = dir_ / "train-images-idx3-ubyte";
  expect_error<DataError>([&] { FashionMnist{options_}; }, {"labels", "[N]"});
  options_.labels = options_.images = "";
  options_.split = "test";
  expect_error<DataError>([&] { FashionMnist{options_}; }, {"t10k-images-idx3-ubyte"});
  options_.root = dir_ / "nowhere";
  expect_error<DataError>([&] { FashionMnist{options_}; }, {"nowhere", "dataset-fashion-mnist", "'root'"});
}

TEST(FashionMnist, ReadsTheRealSet) {
  FashionMnistOptions options;
  if (!std::filesystem::is_directory(options.root)) GTEST_SKIP() << "Debian's dataset-fashion-mnist is not installed";
  options.split = "test";
  const FashionMnist data(options);
  ASSERT_EQ(data.size(), 10000);
  const Batch batch = data.get({0, 9999});
  EXPECT_EQ(batch["image"].sizes(), at::IntArrayRef({2, 1, 28, 28}));
  EXPECT_EQ(batch["target"][0].item<int64_t>(), 9);  // an ankle boot
  EXPECT_NEAR(batch["image"].min().item<double>(), -0.2860 / 0.3530, 1e-6);
}

// Images of 8 x 8: a square of 6 x 6 pixels in the middle, of grey level 100 with label 3 and 240 with label 7. Its
// left column is brighter than the rest by 10.
class FashionScenesTest : public ::testing::Test {
 protected:
  FashionScenesTest() {
    std::string pixels;
    for (const int level : {100, 240}) {
      for (int y = 0; y < 8; ++y) {
        for (int x = 0; x < 8; ++x) {
          const bool inside = y > 0 && y < 7 && x > 0 && x < 7;
          pixels.push_back(static_cast<char>(inside ? level + (x == 1 ? 10 : 0) : 0));
        }
      }
    }
    dir_.write("train-images-idx3-ubyte", idx_bytes(0x08, {2, 8, 8}, pixels));
    dir_.write("train-labels-idx1-ubyte", idx_bytes(0x08, {2}, std::string("\3\7", 2)));
  }

  // Objects as they are, over a background without noise.
  FashionScenesOptions plain(int64_t max_objects) const {
    return {.root = dir_.path().string(),
            .length = 200,
            .size = {24, 32},
            .max_objects = max_objects,
            .min_scale = 1,
            .max_scale = 1,
            .flip = false,
            .threshold = 0.1,
            .noise = 0,
            .normalize = false};
  }
  TempDir dir_;
};

std::vector<int64_t> first(int64_t count) {
  std::vector<int64_t> indices(static_cast<std::size_t>(count));
  std::iota(indices.begin(), indices.end(), 0);
  return indices;
}

bool holds_everywhere(const at::Tensor& holds) { return holds.all().item<bool>(); }

// Grey levels of 0 to 255 above that of the object whose label a pixel has.
at::Tensor levels_above(const Batch& batch) {
  const at::Tensor level = at::where(batch["target"].eq(4), 100.0F, 240.0F);
  return batch["image"].squeeze(1).mul(255).round() - level;
}

TEST_F(FashionScenesTest, OneObjectIsLabelledWhereItsPixelsAre) {
  const Batch batch = FashionScenes(plain(1)).get(first(8));
  EXPECT_EQ(batch["image"].sizes(), (std::vector<int64_t>{8, 1, 24, 32}));
  EXPECT_EQ(batch["target"].sizes(), (std::vector<int64_t>{8, 24, 32}));
  const at::Tensor& target = batch["target"];
  const at::Tensor object = target.ne(0);
  EXPECT_TRUE(holds_everywhere(target.eq(0).logical_or(target.eq(4)).logical_or(target.eq(8))));
  EXPECT_TRUE(holds_everywhere(object.sum({1, 2}).eq(36)));
  const at::Tensor has_object_left = at::constant_pad_nd(object, {1, -1});
  EXPECT_TRUE(holds_everywhere(levels_above(batch).eq(has_object_left.logical_not().mul(10)).masked_select(object)));
}

TEST_F(FashionScenesTest, AnObjectOnTopHasBothPixelsAndLabel) {
  const Batch batch = FashionScenes(plain(8)).get(first(100));
  const at::Tensor& target = batch["target"];
  const at::Tensor above = levels_above(batch).masked_select(target.ne(0));
  EXPECT_TRUE(holds_everywhere(above.eq(0).logical_or(above.eq(10))));
  const at::Tensor counts = target.ne(0).sum({1, 2});
  EXPECT_TRUE(holds_everywhere(counts.ge(36)));
  EXPECT_FALSE(holds_everywhere(counts.remainder(36).eq(0))) << "nothing overlaps";
  EXPECT_FALSE(at::equal(target[0], target[1]));
}

TEST_F(FashionScenesTest, ARimLiesBetweenObjectAndBackground) {
  FashionScenesOptions options = plain(3);
  const Batch without = FashionScenes(options).get(first(6));
  options.ignore_rim = true;
  const Batch with = FashionScenes(options).get(first(6));
  EXPECT_TRUE(at::equal(without["image"], with["image"]));
  const at::Tensor& target = with["target"];
  const at::Tensor rim = target.eq(255), background = target.eq(0), object = background.logical_or(rim).logical_not();
  EXPECT_TRUE(holds_everywhere(target.eq(without["target"]).logical_or(rim)));
  for (const int64_t dim : {1, 2}) {
    const int64_t last = target.size(dim) - 1;
    const auto touch = [&](const at::Tensor& before, const at::Tensor& after) {
      return before.narrow(dim, 0, last).logical_and(after.narrow(dim, 1, last)).any().item<bool>();
    };
    EXPECT_FALSE(touch(background, object) || touch(object, background));
  }
  EXPECT_GT(rim.sum().item<int64_t>(), 6 * 12);  // a square in a corner has 12 pixels around it
}

TEST_F(FashionScenesTest, ASceneIsTheSameWheneverItIsAskedFor) {
  FashionScenesOptions options = plain(4);
  options.noise = 0.2;
  options.flip = true;
  options.min_scale = 0.5;
  options.max_scale = 2;
  const FashionScenes scenes(options), again(options);
  const Batch batch = scenes.get({5, 9, 5});
  EXPECT_TRUE(at::equal(batch["image"][0], batch["image"][2]));
  EXPECT_FALSE(at::equal(batch["image"][0], batch["image"][1]));
  const Batch other = again.get({9, 5});
  EXPECT_TRUE(at::equal(batch["image"][0], other["image"][1]));
  EXPECT_TRUE(at::equal(batch["target"][0], other["target"][1]));
  EXPECT_GE(batch["image"].min().item<float>(), 0);
  EXPECT_LE(batch["image"].max().item<float>(), 1);
  options.normalize = true;
  EXPECT_TRUE(at::equal(FashionScenes(options).get({5})["image"], batch["image"].narrow(0, 0, 1).sub(0.325).div(0.21)));
  options.seed = 1;
  EXPECT_FALSE(at::equal(FashionScenes(options).get({5})["target"][0], batch["target"][0]));
}

TEST_F(FashionScenesTest, RefusesWhatItCannotDraw) {
  FashionScenesOptions options = plain(1);
  options.max_scale = 4;
  expect_error<ConfigError>([&] { FashionScenes{options}; }, {"height 24", "at least 32"});
  options.min_scale = 4.5;
  expect_error<ConfigError>([&] { FashionScenes{options}; }, {"max_scale is 4", "4.5"});
  options.size = {24};
  expect_error<ConfigError>([&] { FashionScenes{options}; }, {"size with 1"});
  expect_error<DataError>([&] { FashionScenes(plain(1)).get({200}); }, {"index 200", "0 to 199"});
}

}  // namespace
}  // namespace duet
