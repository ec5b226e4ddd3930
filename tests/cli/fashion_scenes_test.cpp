#include "cli/zoo/fashion_scenes.h"
#include <cmath>
#include <memory>
#include <thread>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/idx_file.h"
#include "tests/support/temp_dir.h"

namespace duet {
namespace {

// Images of 8 x 8: a square of 6 x 6 pixels in the middle, of grey level 100 with label 3 and 240 with label 7. Its
// left column is brighter than the rest by 10.
class FashionScenesTest : public testing::Test {
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

int64_t label_at(const Batch& batch, int64_t scene, int64_t y, int64_t x) {
  const at::Tensor& target = batch["target"];
  if (y < 0 || x < 0 || y >= target.size(1) || x >= target.size(2)) return -1;
  return target.const_data_ptr<int64_t>()[(scene * target.size(1) + y) * target.size(2) + x];
}

float grey_at(const Batch& batch, int64_t scene, int64_t y, int64_t x) {
  const at::Tensor& image = batch["image"];
  return image.const_data_ptr<float>()[(scene * image.size(2) + y) * image.size(3) + x];
}

template <class Visit>
void for_each_pixel(const Batch& batch, Visit visit) {
  for (int64_t i = 0; i < batch.size(); ++i) {
    for (int64_t y = 0; y < batch["target"].size(1); ++y) {
      for (int64_t x = 0; x < batch["target"].size(2); ++x) visit(i, y, x);
    }
  }
}

TEST_F(FashionScenesTest, OneObjectIsLabelledWhereItsPixelsAre) {
  const FashionScenes scenes(plain(1));
  const Batch batch = scenes.get({0, 1, 2, 3, 4, 5, 6, 7});
  EXPECT_EQ(batch["image"].sizes(), (std::vector<int64_t>{8, 1, 24, 32}));
  EXPECT_EQ(batch["target"].sizes(), (std::vector<int64_t>{8, 24, 32}));
  EXPECT_EQ(batch["image"].scalar_type(), at::kFloat);
  EXPECT_EQ(batch["target"].scalar_type(), at::kLong);
  std::vector<int> counts(8, 0);
  for_each_pixel(batch, [&](int64_t i, int64_t y, int64_t x) {
    const int64_t label = label_at(batch, i, y, x);
    if (label == 0) return;
    ++counts[static_cast<size_t>(i)];
    EXPECT_TRUE(label == 4 || label == 8) << label;
    const float level = label == 4 ? 100.0F : 240.0F;
    const bool left = label_at(batch, i, y, x - 1) == 0;
    EXPECT_NEAR(grey_at(batch, i, y, x), (level + (left ? 10 : 0)) / 255, 1e-6);
  });
  for (const int count : counts) EXPECT_EQ(count, 36);
}

TEST_F(FashionScenesTest, AnObjectOnTopHasBothPixelsAndLabel) {
  const FashionScenes scenes(plain(8));
  std::vector<int64_t> all;
  for (int64_t i = 0; i < 100; ++i) all.push_back(i);
  const Batch batch = scenes.get(all);
  bool overlaps = false, differs = false;
  std::vector<int64_t> counts(all.size(), 0);
  for_each_pixel(batch, [&](int64_t i, int64_t y, int64_t x) {
    const int64_t label = label_at(batch, i, y, x);
    if (label == 0) return;
    ++counts[static_cast<size_t>(i)];
    const float level = std::round(grey_at(batch, i, y, x) * 255);
    EXPECT_TRUE(label == 4 ? level == 100 || level == 110 : level == 240 || level == 250) << label << " " << level;
    differs = differs || label != label_at(batch, 0, y, x);
  });
  for (const int64_t count : counts) {
    EXPECT_GE(count, 36);
    overlaps = overlaps || count % 36 != 0;
  }
  EXPECT_TRUE(overlaps);
  EXPECT_TRUE(differs);
}

TEST_F(FashionScenesTest, ARimLiesBetweenObjectAndBackground) {
  FashionScenesOptions options = plain(3);
  const Batch without = FashionScenes(options).get({0, 1, 2, 3, 4, 5});
  options.ignore_rim = true;
  const Batch with = FashionScenes(options).get({0, 1, 2, 3, 4, 5});
  EXPECT_TRUE(at::equal(without["image"], with["image"]));
  int64_t ignored = 0;
  for_each_pixel(with, [&](int64_t i, int64_t y, int64_t x) {
    const int64_t label = label_at(with, i, y, x);
    ignored += label == 255;
    if (label != 255) {
      EXPECT_EQ(label, label_at(without, i, y, x));
    }
    if (label != 0) return;
    for (const auto& [dy, dx] : {std::pair{-1, 0}, {1, 0}, {0, -1}, {0, 1}}) {
      const int64_t near = label_at(with, i, y + dy, x + dx);
      EXPECT_TRUE(near == 0 || near == 255 || near == -1) << near;
    }
  });
  EXPECT_GT(ignored, 6 * 12);  // a square in a corner has 12 pixels around it
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
  std::vector<Batch> others(4);
  std::vector<std::thread> threads;
  for (Batch& other : others) threads.emplace_back([&] { other = again.get({9, 5}); });
  for (std::thread& thread : threads) thread.join();
  for (const Batch& other : others) {
    EXPECT_TRUE(at::equal(batch["image"][0], other["image"][1]));
    EXPECT_TRUE(at::equal(batch["target"][0], other["target"][1]));
    EXPECT_TRUE(at::equal(batch["target"][1], other["target"][0]));
  }
  options.seed = 1;
  EXPECT_FALSE(at::equal(FashionScenes(options).get({5})["image"][0], batch["image"][0]));
}

TEST_F(FashionScenesTest, GreyLevelsAreNormalised) {
  FashionScenesOptions options = plain(2);
  options.noise = 1;
  const at::Tensor levels = FashionScenes(options).get({0, 1})["image"];
  EXPECT_GE(levels.min().item<float>(), 0);
  EXPECT_LE(levels.max().item<float>(), 1);
  options.normalize = true;
  options.mean = 0.25;
  options.std = 0.5;
  EXPECT_TRUE(at::equal(FashionScenes(options).get({0, 1})["image"], levels.sub(0.25).div(0.5)));
}

TEST_F(FashionScenesTest, RefusesWhatItCannotDraw) {
  const auto refuse = [&](const std::function<void(FashionScenesOptions&)>& change,
                          const std::vector<std::string>& parts) {
    FashionScenesOptions options = plain(1);
    change(options);
    expect_error<ConfigError>([&] { FashionScenes{options}; }, parts);
  };
  refuse([](auto& o) { o.split = "val"; }, {"split is 'val'"});
  refuse([](auto& o) { o.length = 0; }, {"length is 0"});
  refuse([](auto& o) { o.size = {24}; }, {"size with 1"});
  refuse([](auto& o) { o.size = {24, 7}; }, {"width 7", "at least 8"});
  refuse([](auto& o) { o.max_scale = 4; }, {"height 24", "at least 32"});
  refuse([](auto& o) { o.min_scale = 1.5; }, {"max_scale is 1", "1.5"});
  refuse([](auto& o) { o.max_objects = 0; }, {"max_objects is 0"});
  refuse([](auto& o) { o.noise = std::nan(""); }, {"noise"});
  refuse([](auto& o) { o.std = 0; }, {"std is 0"});
  refuse([](auto& o) { o.seed = -1; }, {"seed is -1"});
  FashionScenesOptions options = plain(1);
  expect_error<DataError>([&] { FashionScenes(options).get({200}); }, {"index 200", "0 to 199"});
  options.root = dir_ / "none";
  expect_error<DataError>([&] { FashionScenes{options}; }, {"no folder"});
}

}  // namespace
}  // namespace duet
