#include "cli/zoo/fashion_mnist.h"
#include <filesystem>
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include "base/error.h"
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

}  // namespace
}  // namespace duet
