#include "cli/config/dataset_config.h"
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "cli/registry.h"
#include "tests/support/expect_error.h"
#include "tests/support/log_lines.h"

// What a config says of a dataset beside the dataset's own keys, and in which order it is done.

namespace duet {
namespace {

void register_raw() {
  static const bool done = [] {
    register_dataset("Raw", [](ConfigNode&) {
      const at::Tensor pixels = at::arange(2 * 16, at::kByte).view({2, 4, 4});
      return std::make_shared<TensorDataset>(
          NamedTensors{{"pixels", pixels}, {"label", at::tensor({0, 2}, at::kInt)}, {"noise", at::full({2, 3}, 0.5)}});
    });
    return true;
  }();
  ASSERT_TRUE(done);
}

std::shared_ptr<const Dataset> raw(const std::string& keys) {
  register_raw();
  return make_dataset(ConfigNode::parse_text("type: Raw\n" + keys, "c.yaml"));
}

TEST(DatasetConfig, TransformsSeeTheNamesAndDtypesThatTheConfigGave) {
  const Batch batch = raw("rename: {pixels: image, label: target}\ncast: {target: int64}\n"
                          "transforms: [{type: ChannelsFirst}, {type: Normalize}, {type: OneHot, num_classes: 3}]\n")
                          ->get({0, 1});
  EXPECT_EQ(batch["image"].sizes(), at::IntArrayRef({2, 1, 4, 4}));
  EXPECT_FLOAT_EQ(batch["image"][1][0][3][3].item<float>(), (31.0F / 255 - 0.5F) / 0.5F);
  EXPECT_TRUE(at::equal(batch["target"], at::tensor({1.0F, 0.0F, 0.0F, 0.0F, 0.0F, 1.0F}).view({2, 3})));
  const Batch mixed = raw("rename: {label: target}\ntransforms: [{type: Mixup, num_classes: 3}]\n")->get({0, 1});
  EXPECT_EQ(mixed["target"].sizes(), at::IntArrayRef({2, 3}));
  const Batch cast =
      raw("cast: {pixels: float32, label: int64}\ntransforms: [{type: ChannelsFirst, tensor: pixels}]\n")->get({0});
  EXPECT_EQ(cast["pixels"].scalar_type(), at::kFloat);
  EXPECT_EQ(cast["label"].scalar_type(), at::kLong);
}

TEST(DatasetConfig, ACastToIntegersKeepsEveryValue) {
  expect_error<DataError>([] { raw("cast: {noise: int64}\n")->get({0, 1}); }, {"'noise'", "that Long cannot hold"});
}

TEST(DatasetConfig, APictureOfBytesThatIsCastToFloatIsWarnedOfOnce) {
  const auto warnings = [](const std::string& keys) {
    const std::string text = testing::stderr_of([&] {
      const auto dataset = raw(keys);
      for (int i = 0; i < 2; ++i) dataset->get({0});
    });
    std::size_t count = 0;
    for (std::size_t at = text.find("stay 0 to 255"); at != std::string::npos;
         at = text.find("stay 0 to 255", at + 1)) {
      ++count;
    }
    return count;
  };
  EXPECT_EQ(warnings("cast: {pixels: float32}\n"), 1);
  EXPECT_EQ(warnings("cast: {pixels: float32}\ntransforms: [{type: ChannelsFirst, tensor: pixels}]\n"), 1);
  EXPECT_EQ(warnings("cast: {pixels: float32}\ntransforms: [{type: ChannelsFirst, tensor: pixels}, "
                     "{type: Normalize, mean: [127.5], std: [127.5]}]\n"),
            0);
  EXPECT_EQ(warnings("cast: {pixels: int64, label: float32}\n"), 0);
}

TEST(DatasetConfig, ClassesAreThoseOfTheRenamedTarget) {
  EXPECT_EQ(raw("rename: {label: target}\ntransforms: [{type: OneHot, num_classes: 3}]\n")->labels(),
            (std::vector<int64_t>{0, 2}));
}

TEST(DatasetConfig, NamesMayBeSwappedButNotTakenTwice) {
  const Batch swapped = raw("rename: {label: noise, noise: label}\n")->get({0});
  EXPECT_EQ(swapped["noise"].scalar_type(), at::kInt);
  expect_error<ConfigError>([] { raw("rename: {label: noise}\n")->get({0}); }, {"rename", "two tensors", "'noise'"});
  expect_error<ConfigError>([] { raw("rename: {label: target}\ncast: {label: int64}\n")->get({0}); },
                            {"cast.label", "is no tensor", "target"});
}

}  // namespace
}  // namespace duet
