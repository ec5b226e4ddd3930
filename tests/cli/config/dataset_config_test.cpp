#include "cli/config/dataset_config.h"
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "cli/registry.h"
#include "tests/support/expect_error.h"

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
