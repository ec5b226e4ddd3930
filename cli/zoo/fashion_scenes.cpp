#include "cli/zoo/fashion_scenes.h"
#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>
#include <ATen/ops/empty.h>
#include <c10/util/StringUtil.h>
#include "base/error.h"
#include "data/dataset.h"
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

uint64_t mixed(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

// Numbers that depend on seed and index alone: SplitMix64, whose rule is the same with every standard library.
class Draws {
 public:
  Draws(int64_t seed, int64_t index)
      : state_(mixed(mixed(static_cast<uint64_t>(seed)) + static_cast<uint64_t>(index))) {}

  uint64_t bits() { return mixed(state_ += 0x9E3779B97F4A7C15ULL); }
  double uniform(double low, double high) {
    return low + (high - low) * (static_cast<double>(bits() >> 11) * kSmallestFraction);
  }
  int64_t below(int64_t bound) { return static_cast<int64_t>(bits() % static_cast<uint64_t>(bound)); }

 private:
  uint64_t state_;
};

// An object at its size in the scene, with a border of zeros so that a rim has a place.
struct Sprite {
  int64_t height = 0, width = 0;  // without the border
  std::vector<float> grey{};

  float operator()(int64_t y, int64_t x) const { return grey[static_cast<std::size_t>((y + 1) * (width + 2) + x + 1)]; }
};

struct SpriteSize {
  int64_t height, width;
};

// Where an output row or column lies between two of the image.
struct Tap {
  int64_t first, second;
  float fraction;
};

std::vector<Tap> taps(int64_t from, int64_t to, bool flip) {
  std::vector<Tap> all(static_cast<std::size_t>(to));
  for (int64_t i = 0; i < to; ++i) {
    const double at =
        (static_cast<double>(flip ? to - 1 - i : i) + 0.5) * static_cast<double>(from) / static_cast<double>(to) - 0.5;
    const double inside = std::clamp(at, 0.0, static_cast<double>(from - 1));
    const auto first = static_cast<int64_t>(inside);
    all[static_cast<std::size_t>(i)] = {first, std::min(first + 1, from - 1),
                                        static_cast<float>(inside - static_cast<double>(first))};
  }
  return all;
}

// `image` of size `from` scaled in both directions, by linear interpolation between the centres of pixels.
Sprite make_sprite(const float* image, SpriteSize from, double scale, bool flip) {
  const auto scaled = [scale](int64_t pixels) {
    return std::max<int64_t>(1, std::llround(static_cast<double>(pixels) * scale));
  };
  Sprite sprite{scaled(from.height), scaled(from.width), {}};
  sprite.grey.resize(static_cast<std::size_t>((sprite.height + 2) * (sprite.width + 2)));
  const std::vector<Tap> rows = taps(from.height, sprite.height, false), columns = taps(from.width, sprite.width, flip);
  for (int64_t y = 0; y < sprite.height; ++y) {
    const Tap& row = rows[static_cast<std::size_t>(y)];
    const float *upper = image + row.first * from.width, *lower = image + row.second * from.width;
    float* out = sprite.grey.data() + (y + 1) * (sprite.width + 2) + 1;
    for (const Tap& column : columns) {
      const float top = upper[column.first] + column.fraction * (upper[column.second] - upper[column.first]);
      const float bottom = lower[column.first] + column.fraction * (lower[column.second] - lower[column.first]);
      *out++ = top + row.fraction * (bottom - top);
    }
  }
  return sprite;
}

FashionMnistOptions garment_options(const FashionScenesOptions& options) {
  check_options(options);
  FashionMnistOptions garments;
  garments.root = options.root;
  garments.split = options.split;
  garments.normalize = false;
  return garments;
}

}  // namespace

// One scene's grey levels and labels, in the batch's memory.
struct FashionScenes::Canvas {
  static constexpr int64_t kIgnore = 255;

  float* grey;
  int64_t* label;
  int64_t height, width;

  // Label 0 everywhere.
  void fill_with_gradient(Draws& draws) const {
    const double level = draws.uniform(0.1, 0.4);
    const double down = draws.uniform(-0.3, 0.3), right = draws.uniform(-0.3, 0.3);
    std::fill_n(label, height * width, int64_t{0});
    for (int64_t y = 0; y < height; ++y) {
      const double row = level + down * (static_cast<double>(y) / static_cast<double>(height) - 0.5);
      for (int64_t x = 0; x < width; ++x) {
        const double column = right * (static_cast<double>(x) / static_cast<double>(width) - 0.5);
        grey[y * width + x] = static_cast<float>(row + column);
      }
    }
  }

  // Labels the pixels that touch the object as kIgnore, and its own: paste it afterwards.
  void mark_rim(const Sprite& sprite, int64_t top, int64_t left, float threshold) const {
    const auto is_object = [&](int64_t y, int64_t x) {
      return y >= -1 && x >= -1 && y <= sprite.height && x <= sprite.width && sprite(y, x) > threshold;
    };
    for (int64_t y = std::max<int64_t>(-1, -top); y <= std::min(sprite.height, height - 1 - top); ++y) {
      for (int64_t x = std::max<int64_t>(-1, -left); x <= std::min(sprite.width, width - 1 - left); ++x) {
        if (is_object(y - 1, x) || is_object(y + 1, x) || is_object(y, x - 1) || is_object(y, x + 1)) {
          label[(top + y) * width + left + x] = kIgnore;
        }
      }
    }
  }

  // Pixels above the threshold, which lie within the canvas.
  void paste(const Sprite& sprite, int64_t top, int64_t left, float threshold, int64_t new_label) const {
    for (int64_t y = 0; y < sprite.height; ++y) {
      for (int64_t x = 0; x < sprite.width; ++x) {
        const float value = sprite(y, x);
        if (!(value > threshold)) continue;
        const int64_t pixel = (top + y) * width + left + x;
        grey[pixel] = value;
        label[pixel] = new_label;
      }
    }
  }

  // Levels stay in [0, 1].
  void add_noise(Draws& draws, float noise) const {
    uint64_t bits = 0;
    for (int64_t i = 0; i < height * width; ++i) {
      bits = i % 4 == 0 ? draws.bits() : bits >> 16;
      const float centred = static_cast<float>(bits & 0xFFFF) / 65535.0F - 0.5F;
      grey[i] = std::clamp(grey[i] + noise * centred, 0.0F, 1.0F);
    }
  }
};

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

void FashionScenes::draw_scene(int64_t index, const Canvas& canvas) const {
  Draws draws(options_.seed, index);
  canvas.fill_with_gradient(draws);
  std::vector<int64_t> chosen(static_cast<std::size_t>(1 + draws.below(options_.max_objects)));
  for (int64_t& garment : chosen) garment = draws.below(garments_.size());
  const Batch objects = garments_.get(chosen);
  const at::Tensor& images = objects["image"];
  const int64_t* labels = objects["target"].const_data_ptr<int64_t>();
  const auto threshold = static_cast<float>(options_.threshold);
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    const float* image = images.const_data_ptr<float>() + static_cast<int64_t>(i) * images.stride(0);
    const double scale = draws.uniform(options_.min_scale, options_.max_scale);
    const bool flip = draws.below(2) == 1 && options_.flip;
    const Sprite sprite = make_sprite(image, {images.size(2), images.size(3)}, scale, flip);
    const int64_t top = draws.below(canvas.height - sprite.height + 1);
    const int64_t left = draws.below(canvas.width - sprite.width + 1);
    if (options_.ignore_rim) canvas.mark_rim(sprite, top, left, threshold);
    canvas.paste(sprite, top, left, threshold, labels[i] + 1);
  }
  canvas.add_noise(draws, static_cast<float>(options_.noise));
}

Batch FashionScenes::shown(const Batch& batch, const std::vector<int64_t>& /*indices*/) const {
  Batch undone = batch;
  if (options_.normalize) make_normalize({.mean = {options_.mean}, .std = {options_.std}})->undo_for_show(undone);
  return undone;
}

Batch FashionScenes::get(const std::vector<int64_t>& indices) const {
  check_indices("FashionScenes", indices, size());
  const auto count = static_cast<int64_t>(indices.size());
  const int64_t height = options_.size[0], width = options_.size[1], pixels = height * width;
  const at::Tensor image = at::empty({count, 1, height, width}, at::TensorOptions(at::kFloat));
  const at::Tensor target = at::empty({count, height, width}, at::TensorOptions(at::kLong));
  float* const grey = image.mutable_data_ptr<float>();
  int64_t* const label = target.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < count; ++i) {
    draw_scene(indices[static_cast<std::size_t>(i)],
               {.grey = grey + i * pixels, .label = label + i * pixels, .height = height, .width = width});
  }
  if (options_.normalize) {
    const auto mean = static_cast<float>(options_.mean), std = static_cast<float>(options_.std);
    std::transform(grey, grey + count * pixels, grey, [mean, std](float value) { return (value - mean) / std; });
  }
  return {{"image", image}, {"target", target}};
}

}  // namespace duet
