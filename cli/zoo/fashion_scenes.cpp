#include "cli/zoo/fashion_scenes.h"
#include <algorithm>
#include <cmath>
#include <utility>
#include <ATen/ops/empty.h>
#include <c10/util/StringUtil.h>
#include "base/error.h"
#include "cli/zoo/scene_canvas.h"

namespace duet {

const OptionFields& FashionScenesOptions::fields() {
  using O = FashionScenesOptions;
  static const OptionFields kFields = OptionFields::of<O>("FashionScenes", [](const FieldAdder<O>& add) {
    add("root", &O::root, "folder of Fashion-MNIST's IDX files");
    add("split", &O::split, "whose images the scenes show").one_of({"train", "test"});
    add("length", &O::length, "scenes").in(between(1, INT32_MAX));
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
    add("std", &O::std, "of the grey levels").in(above(0)).expects("a number above 0");
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
  return kFields;
}

namespace {

FashionMnistOptions garment_options(const FashionScenesOptions& options) {
  options.validate();
  FashionMnistOptions garments;
  garments.root = options.root;
  garments.split = options.split;
  garments.normalize = false;
  return garments;
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

void FashionScenes::draw_scene(int64_t index, const SceneCanvas& canvas) const {
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
