#include "cli/zoo/fashion_scenes.h"
#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/upsample_bilinear2d.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/StringUtil.h>
#include "base/detail/split_mix.h"
#include "base/error.h"
#include "data/transform.h"

namespace duet {

const OptionFields& FashionScenesOptions::fields() {
  using O = FashionScenesOptions;
  return described<O>("FashionScenes", [](const auto& add) {
    add.about("Scenes for segmentation: gives image float32 [N, 1, H, W], target int64 [N, H, W].");
    add("root", &O::root, "folder of Fashion-MNIST's IDX files");
    add("split", &O::split, "whose images the scenes show").one_of({"train", "test"});
    add("length", &O::length, "scenes of an epoch").in(between(1, INT32_MAX));
    add("seed", &O::seed, "other scenes of the same images").in(between(0, INT32_MAX));
    add("size", &O::size, "height and width of a scene in pixels").in(between(1, 4096));
    add("max_objects", &O::max_objects, "most objects in a scene").in(between(1, 256));
    add("min_scale", &O::min_scale, "smallest size of an object").in(between(0.1, 16));
    add("max_scale", &O::max_scale, "largest size of an object").in(between(0.1, 16));
    add("flip", &O::flip, "left and right, every other object");
    add("threshold", &O::threshold, "grey level above which a pixel is the object").in(between(0, 0.99));
    add("noise", &O::noise, "width of the uniform noise").in(between(0, 1));
    add("ignore_rim", &O::ignore_rim, "marks the pixels that touch an object as 255");
    add("normalize", &O::normalize, "(x - mean) / std");
    add("mean", &O::mean, "grey level in [0, 1]").expects("a finite number");
    add("std", &O::std, "standard deviation of the grey levels").in(above(0)).expects("a number above 0");
    add.rule([](const O& o) {
      if (o.size.size() != 2) {
        throw ConfigError(c10::str("[FashionScenes] found size with ", o.size.size(),
                                   " numbers, expected height and width; correct 'size'"));
      }
      if (o.max_scale >= o.min_scale) return;
      throw ConfigError(
          c10::str("[FashionScenes] max_scale is ", o.max_scale, ", expected ", o.min_scale, " (min_scale) to 16"));
    });
  });
}

namespace {

constexpr double kSmallestFraction = 1.0 / 9007199254740992.0;  // 2^-53: a double holds 53 of 64 bits

// Numbers that depend on seed and index alone.
class Draws {
 public:
  Draws(int64_t seed, int64_t index)
      : state_(scrambled(scrambled(static_cast<uint64_t>(seed)) + static_cast<uint64_t>(index))) {}

  uint64_t bits() { return next_random(state_); }
  double uniform(double low, double high) {
    return low + (high - low) * (static_cast<double>(bits() >> 11) * kSmallestFraction);
  }
  int64_t below(int64_t bound) { return static_cast<int64_t>(bits() % static_cast<uint64_t>(bound)); }

 private:
  uint64_t state_;
};

FashionMnistOptions garment_options(const FashionScenesOptions& options) {
  check_options(options);
  FashionMnistOptions garments;
  garments.root = options.root;
  garments.split = options.split;
  garments.normalize = false;
  return garments;
}

constexpr int64_t kIgnore = 255;

at::Tensor gradient(Draws& draws, int64_t height, int64_t width) {
  const double level = draws.uniform(0.1, 0.4);
  const double down = draws.uniform(-0.3, 0.3), right = draws.uniform(-0.3, 0.3);
  const auto ramp = [](int64_t pixels, double slope) {
    return at::arange(pixels, at::kDouble).div(pixels).sub(0.5).mul(slope);
  };
  return ramp(height, down).add(level).unsqueeze(1).add(ramp(width, right));
}

// `image` [H, W] scaled in both directions.
at::Tensor scaled(const at::Tensor& image, double scale) {
  const auto pixels = [&](int64_t dim) {
    return std::max<int64_t>(1, std::llround(static_cast<double>(image.size(dim)) * scale));
  };
  return at::upsample_bilinear2d(image.unsqueeze(0).unsqueeze(0), {pixels(0), pixels(1)},
                                 /*align_corners=*/false)[0][0];
}

// The pixels that have one of `object` above, below or beside them.
at::Tensor rim_of(const at::Tensor& object) {
  at::Tensor rim = at::zeros_like(object);
  for (const int64_t dim : {0, 1}) {
    const int64_t last = object.size(dim) - 1;
    rim.narrow(dim, 0, last).logical_or_(object.narrow(dim, 1, last));
    rim.narrow(dim, 1, last).logical_or_(object.narrow(dim, 0, last));
  }
  return rim;
}

// Levels stay in [0, 1].
void add_noise(Draws& draws, const at::Tensor& grey, float noise) {
  float* const levels = grey.mutable_data_ptr<float>();
  uint64_t bits = 0;
  for (int64_t i = 0; i < grey.numel(); ++i) {
    bits = i % 4 == 0 ? draws.bits() : bits >> 16;
    const float centred = static_cast<float>(bits & 0xFFFF) / 65535.0F - 0.5F;
    levels[i] = std::clamp(levels[i] + noise * centred, 0.0F, 1.0F);
  }
}

}  // namespace

FashionScenes::FashionScenes(FashionScenesOptions options)
    : options_(std::move(options)), garments_(garment_options(options_)) {
  const at::Tensor image = garments_.get({0})["image"];
  for (int side = 0; side < 2; ++side) {
    const auto needed = std::llround(static_cast<double>(image.size(2 + side)) * options_.max_scale);
    const int64_t given = options_.size[static_cast<std::size_t>(side)];
    if (given >= needed) continue;
    throw ConfigError(c10::str("[FashionScenes] found ", side == 0 ? "height " : "width ", given,
                               ", expected at least ", needed, " for images of ", image.size(2 + side),
                               " at max_scale ", options_.max_scale, "; raise 'size' or lower 'max_scale'"));
  }
}

void FashionScenes::draw_scene(int64_t index, const at::Tensor& grey, const at::Tensor& label) const {
  Draws draws(options_.seed, index);
  grey.copy_(gradient(draws, grey.size(0), grey.size(1)));
  label.zero_();
  std::vector<int64_t> chosen(static_cast<std::size_t>(1 + draws.below(options_.max_objects)));
  for (int64_t& garment : chosen) garment = draws.below(garments_.size());
  const Batch objects = garments_.get(chosen);
  for (int64_t i = 0; i < std::ssize(chosen); ++i) {
    const double scale = draws.uniform(options_.min_scale, options_.max_scale);
    const bool flip = draws.below(2) == 1 && options_.flip;
    at::Tensor sprite = scaled(objects["image"][i][0], scale);
    if (flip) sprite = sprite.flip({1});
    const int64_t top = draws.below(grey.size(0) - sprite.size(0) + 1);
    const int64_t left = draws.below(grey.size(1) - sprite.size(1) + 1);
    const auto place = [&](const at::Tensor& scene) {
      return scene.narrow(0, top, sprite.size(0)).narrow(1, left, sprite.size(1));
    };
    const at::Tensor object = at::zeros_like(label, at::kBool);
    place(object).copy_(sprite > options_.threshold);
    if (options_.ignore_rim) label.masked_fill_(rim_of(object), kIgnore);
    label.masked_fill_(object, objects["target"][i].item<int64_t>() + 1);
    place(grey).copy_(at::where(place(object), sprite, place(grey)));
  }
  add_noise(draws, grey, static_cast<float>(options_.noise));
}

Batch FashionScenes::denormalized(const Batch& batch, const std::vector<int64_t>& /*indices*/) const {
  Batch undone = batch;
  if (options_.normalize) make_normalize({.mean = {options_.mean}, .std = {options_.std}})->undo_for_show(undone);
  return undone;
}

Batch FashionScenes::get(const std::vector<int64_t>& indices) const {
  check_indices("FashionScenes", indices, size());
  const auto count = static_cast<int64_t>(indices.size());
  const int64_t height = options_.size[0], width = options_.size[1];
  const at::Tensor image = at::empty({count, 1, height, width}, at::TensorOptions(at::kFloat));
  const at::Tensor target = at::empty({count, height, width}, at::TensorOptions(at::kLong));
  for (int64_t i = 0; i < count; ++i) draw_scene(indices[static_cast<std::size_t>(i)], image[i][0], target[i]);
  if (options_.normalize) image.sub_(options_.mean).div_(options_.std);
  return {{"image", image}, {"target", target}};
}

}  // namespace duet
