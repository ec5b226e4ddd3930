#include "data/detail/pixels.h"
#include <functional>
#include <memory>
#include <string>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "data/transform.h"
#include "tests/support/expect_error.h"

// Which tensors the transforms take for pictures and masks, and what they say where there is none.

namespace duet {
namespace {

// The first sample.
Batch through_one(std::unique_ptr<const Transform> transform, const NamedTensors& tensors, uint64_t seed = 0) {
  Transforms list;
  list.push_back(std::move(transform));
  return TransformedDataset(std::make_shared<TensorDataset>(tensors), std::move(list)).draw({0}, {{seed, 0}});
}

// A picture of counted pixels, beside `mask`.
Batch moved(std::unique_ptr<const Transform> transform, const at::Tensor& mask, uint64_t seed = 1) {
  const at::Tensor pixels = at::arange(48, at::kFloat).view({1, 1, 6, 8}) / 48;
  return through_one(std::move(transform), {{"image", pixels}, {"mask", mask}}, seed);
}

// What is done to a mask int64 is done to one of any dtype, which it keeps.
class MaskOf : public ::testing::TestWithParam<at::ScalarType> {};
INSTANTIATE_TEST_SUITE_P(Transforms, MaskOf,
                         ::testing::Values(at::kByte, at::kChar, at::kShort, at::kInt, at::kLong, at::kBool),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

TEST_P(MaskOf, IsMovedAsItsPicture) {
  at::Tensor labels = at::arange(48, at::kLong).view({1, 6, 8});
  if (GetParam() == at::kBool) labels = (labels.remainder(5) < 2).to(at::kLong);
  const std::function<std::unique_ptr<const Transform>()> moves[] = {
      [] { return make_random_flip({1.0, "horizontal"}); }, [] { return make_random_flip({1.0, "vertical"}); },
      [] { return make_crop({{4, 5}}); }, [] { return make_random_resized_crop({{6, 6}}); },
      [] { return make_resize({{3, 4}}); }};
  for (const auto& move : moves) {
    const at::Tensor expected = moved(move(), labels)["mask"], mask = moved(move(), labels.to(GetParam()))["mask"];
    EXPECT_EQ(mask.scalar_type(), GetParam());
    EXPECT_TRUE(at::equal(mask, expected.to(GetParam())));
    EXPECT_FALSE(at::equal(expected, labels)) << "it is moved at all";
    const at::Tensor with_channel = moved(move(), labels.unsqueeze(1).to(at::kInt))["mask"];
    EXPECT_TRUE(at::equal(with_channel, expected.unsqueeze(1).to(at::kInt)));
  }
}

// Outside is label 255, or false.
TEST_P(MaskOf, IsIgnoredOutside) {
  const at::Tensor mask = at::ones({1, 6, 8}, at::kLong).to(GetParam());
  const auto rotate = [] { return make_random_rotation({180}); };
  const auto pad = [] { return make_crop({{10, 12}, 2}); };
  if (GetParam() == at::kChar) {
    expect_error<DataError>([&] { moved(rotate(), mask, 9); }, {"[RandomRotation]", "int8", "cast: {<mask>: int64}"});
    expect_error<DataError>([&] { moved(pad(), mask); }, {"[Crop]", "int8"});
    return;
  }
  const int64_t outside = GetParam() == at::kBool ? 0 : 255;
  for (const at::Tensor& around : {moved(rotate(), mask, 9)["mask"], moved(pad(), mask)["mask"]}) {
    const at::Tensor labels = around.to(at::kLong);
    EXPECT_EQ(around.scalar_type(), GetParam());
    EXPECT_TRUE(((labels == outside) | (labels == 1)).all().item<bool>());
    EXPECT_TRUE((labels == outside).any().item<bool>() && (labels == 1).any().item<bool>());
  }
}

TEST(Transforms, ChannelsFirstGivesPicturesTheirChannels) {
  const at::Tensor pixels = at::arange(2 * 6 * 8 * 3, at::kByte).view({2, 6, 8, 3});
  const auto first = [](const at::Tensor& image) { return through_one(make_channels_first({}), {{"image", image}}); };
  EXPECT_TRUE(at::equal(first(pixels)["image"], pixels.slice(0, 0, 1).permute({0, 3, 1, 2})));
  EXPECT_TRUE(at::equal(first(pixels.select(3, 1))["image"], pixels.slice(0, 0, 1).select(3, 1).unsqueeze(1)));
  EXPECT_EQ(through_one(make_channels_first({"x"}), {{"x", pixels}})["x"].size(1), 3);
  expect_error<DataError>([&] { first(pixels.permute({0, 3, 1, 2})); },
                          {"[ChannelsFirst]", "'image' [3, 6, 8]", "leave ChannelsFirst out"});
  expect_error<DataError>([&] { first(at::ones({2, 5})); }, {"[ChannelsFirst]", "[5]"});
  expect_error<DataError>([&] { through_one(make_channels_first({"y"}), {{"x", pixels}}); }, {"'y'", "x"});
}

// A transform that has nothing to act on says so, whatever it would have drawn.
TEST(Transforms, ThatFindNoPictureNameWhatThereIs) {
  const std::function<std::unique_ptr<const Transform>()> all[] = {[] { return make_resize({{4}}); },
                                                                   [] { return make_crop({{2}}); },
                                                                   [] { return make_random_resized_crop({{4}}); },
                                                                   [] { return make_random_flip({0.0}); },
                                                                   [] { return make_random_rotation({}); },
                                                                   [] { return make_color_jitter({0.1}); },
                                                                   [] { return make_normalize({}); },
                                                                   [] { return make_cutout({2, 0.0}); }};
  for (const auto& make : all) {
    const auto fails = [&](const NamedTensors& tensors, const std::vector<std::string>& texts) {
      expect_error<ConfigError>([&] { through_one(make(), tensors); }, texts);
    };
    fails({{"input", at::ones({2, 3})}, {"target", at::ones({2}, at::kLong)}},
          {"no picture", "input float32 [3], target int64 []", "leave ", " out"});
    fails({{"pixels", at::ones({2, 6, 8}, at::kByte)}}, {"pixels uint8 [6, 8]", "ChannelsFirst"});
    fails({{"pixels", at::ones({2, 6, 8, 3}, at::kByte)}}, {"pixels uint8 [6, 8, 3]", "channels come last"});
    fails({{"pixels", at::ones({2, 1, 6, 8}, at::kInt)}}, {"pixels int32 [1, 6, 8]", "cast"});
  }
}

TEST(Transforms, OfAPictureAndAMaskOfOtherSizesAreRefused) {
  const auto fails = [](std::unique_ptr<const Transform> transform, const char* name) {
    const NamedTensors tensors = {{"image", at::ones({1, 1, 6, 8})}, {"mask", at::ones({1, 3, 4}, at::kLong)}};
    expect_error<DataError>([&] { through_one(std::move(transform), tensors); },
                            {name, "'mask' Long[3, 4]", "6 x 8 pixels", "Resize"});
  };
  fails(make_crop({{2}}), "[Crop]");
  fails(make_random_flip({0.0}), "[RandomFlip]");
  fails(make_random_rotation({}), "[RandomRotation]");
  fails(make_random_resized_crop({{4}}), "[RandomResizedCrop]");
  // It would stay where it is while the picture is turned around.
  const NamedTensors with_map = {{"image", at::ones({1, 1, 6, 8})}, {"depth", at::ones({1, 6, 8})}};
  expect_error<DataError>([&] { through_one(make_random_flip({0.0}), with_map); },
                          {"[RandomFlip]", "'depth' Float[6, 8]", "ChannelsFirst"});
}

TEST(Transforms, NormalizeRefusesBytesThatWereCast) {
  const at::Tensor bytes = at::full({1, 1, 4, 4}, 200.0F);
  expect_error<DataError>([&] { through_one(make_normalize({}), {{"image", bytes}}); },
                          {"[Normalize]", "up to 200", "'image'", "uint8"});
  EXPECT_EQ(through_one(make_normalize({{100}, {50}}), {{"image", bytes}})["image"][0][0][0][0].item<float>(), 2.0F);
}

}  // namespace
}  // namespace duet
