#include <array>
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "hooks/prediction_hooks.h"
#include "tests/support/expect_error.h"

namespace duet {
namespace {

using Colour = std::array<int, 3>;

Colour colour_at(const at::Tensor& picture, int64_t y, int64_t x) {
  const uint8_t* pixel = picture.const_data_ptr<uint8_t>() + (y * picture.size(1) + x) * 3;
  return {pixel[0], pixel[1], pixel[2]};
}

constexpr Colour kWhite = {255, 255, 255}, kBlack = {0, 0, 0};

// Two samples of 2 x 2 pixels. Scores choose the classes {{0, 1}, {2, 3}} and {{3, 2}, {1, 0}}.
Batch scene() {
  return {{"image", at::tensor({0.0, 1.0, 2.0, 4.0, 5.0, 5.0, 5.0, 5.0}).view({2, 1, 2, 2})},
          {"target", at::tensor({1, 1, 255, 0, 0, 0, 0, 0}, at::kLong).view({2, 2, 2})}};
}
NamedTensors scores() {
  const at::Tensor classes = at::tensor({0, 1, 2, 3, 3, 2, 1, 0}, at::kLong).view({2, 2, 2});
  return {{"prediction", at::one_hot(classes, 4).permute({0, 3, 1, 2}).to(at::kFloat)}};
}

TEST(SamplePainter, PutsImageTruthAndPredictionSideBySide) {
  const auto paint = sample_painter({.alpha = 1, .zoom = 1});
  const at::Tensor picture = paint(scene(), scores(), 0).pixels;
  ASSERT_EQ(picture.sizes(), (std::vector<int64_t>{2, 3 * 2 + 2 * 4, 3}));
  EXPECT_TRUE(picture.is_contiguous());
  EXPECT_EQ(picture.scalar_type(), at::kByte);
  const Colour one = {128, 0, 0}, two = {0, 128, 0}, three = {128, 128, 0};  // Pascal VOC's
  struct Pixel {
    int64_t y, x;
    Colour colour;
  };
  for (const auto& [y, x, colour] : std::vector<Pixel>{{0, 0, kBlack},
                                                       {0, 1, {64, 64, 64}},
                                                       {1, 1, kWhite},
                                                       {0, 3, kWhite},  // the image; a gap
                                                       {0, 6, one},
                                                       {0, 7, one},
                                                       {1, 6, kWhite},
                                                       {1, 7, kBlack},  // truth 1 1 / ignored 0
                                                       {0, 12, kBlack},
                                                       {0, 13, one},
                                                       {1, 12, two},
                                                       {1, 13, three}}) {  // prediction 0 1 / 2 3
    EXPECT_EQ(colour_at(picture, y, x), colour) << y << " " << x;
  }
  EXPECT_EQ(colour_at(paint(scene(), scores(), 1).pixels, 0, 13), two);

  const at::Tensor numbers = at::tensor({0, 1, 2, 3}, at::kLong).view({1, 2, 2});
  EXPECT_EQ(colour_at(paint(scene(), {{"prediction", numbers}}, 0).pixels, 1, 13), three);
  const at::Tensor binary = at::tensor({-1.0, 1.0, -2.0, 2.0}).view({1, 1, 2, 2});
  EXPECT_EQ(colour_at(paint(scene(), {{"prediction", binary}}, 0).pixels, 0, 12), kBlack);
  EXPECT_EQ(colour_at(paint(scene(), {{"prediction", binary}}, 0).pixels, 0, 13), one);
}

TEST(SamplePainter, FramesAnImageByWhetherItsClassIsRight) {
  const auto paint = sample_painter({.zoom = 4});
  const Batch batch = {{"image", at::rand({3, 1, 2, 2})}, {"target", at::tensor({1, 2, 0}, at::kLong)}};
  const NamedTensors outputs = {{"prediction", at::tensor({0.0, 9.0, 1.0, 5.0, 1.0, 2.0, 7.0, 1.0, 1.0}).view({3, 3})}};
  const at::Tensor right = paint(batch, outputs, 0).pixels, wrong = paint(batch, outputs, 1).pixels;
  ASSERT_EQ(right.sizes(), (std::vector<int64_t>{8 + 16 + 2 * 4, 8 + 2 * 4, 3}));
  EXPECT_GT(colour_at(right, 0, 0)[1], 100);
  EXPECT_LT(colour_at(right, 0, 0)[0], 50);
  EXPECT_GT(colour_at(wrong, 0, 0)[0], 100);
  EXPECT_LT(colour_at(wrong, 0, 0)[1], 50);
  EXPECT_EQ(colour_at(wrong, 4 + 8, 4), (Colour{0, 128, 0}));  // the truth, 2
  EXPECT_EQ(colour_at(wrong, 4 + 8, 4 + 7), kBlack);           // the prediction, 0
}

// The largest of several measures is no class, and whether one is above zero says nothing.
TEST(SamplePainter, RefusesTheTargetsOfARegression) {
  const auto paint = sample_painter();
  const at::Tensor image = at::rand({1, 3, 2, 2});
  for (const at::Tensor& target : {at::tensor({37.5F}), at::tensor({37.5F}).view({1, 1}), at::rand({1, 3}).add(0.5)}) {
    const at::Tensor prediction = at::rand({1, target.dim() == 2 ? target.size(1) : 1});
    expect_error<ConfigError>([&] { paint({{"image", image}, {"target", target}}, {{"prediction", prediction}}, 0); },
                              {"target", "expected", "class"});
  }
  for (const at::Tensor& target : {at::ones({1, 1}), at::tensor({0.25F, 0.75F, 0.0F}).view({1, 3})}) {
    paint({{"image", image}, {"target", target}}, {{"prediction", at::rand(target.sizes())}}, 0);
  }
}

TEST(SamplePainter, RefusesWhatItCannotPaint) {
  const auto paint = sample_painter();
  expect_error<ConfigError>([&] { paint(scene(), {}, 0); }, {"no 'prediction'", "draw: false"});
  expect_error<ConfigError>([&] { paint(scene(), {{"prediction", at::rand({2, 4, 3, 3})}}, 0); }, {"[3, 3]", "[2, 2]"});
  expect_error<ConfigError>([&] { paint(scene(), {{"prediction", at::rand({2, 2, 2})}}, 0); }, {"Float"});
  expect_error<ConfigError>([&] { paint({{"input", at::rand({2, 4})}}, scores(), 0); }, {"no 'image'"});
  expect_error<DataError>([&] { sample_painter({.palette = {"#ffffff"}})(scene(), scores(), 0); },
                          {"class 1", "palette"});
  for (const char* none : {"#fff", "#gg0000", ""}) {
    expect_error<ConfigError>([&] { VisualizationHook({.paint = {.palette = {none}}}); }, {"'" + std::string(none)});
  }
}

}  // namespace
}  // namespace duet
