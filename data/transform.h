#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>
#include "../base/batch.h"
#include "../base/options.h"
#include "dataset.h"

namespace duet {

// Random numbers of one sample, the same on every machine: they follow from the run's seed, the pass over the data, the
// sample's index and how often the pass has drawn it before, whatever the batch, the worker or the rank.
class SampleRandom {
 public:
  SampleRandom(const SampleDraw& draw, int64_t index);

  double uniform(double low = 0, double high = 1);  // in [low, high)
  int64_t below(int64_t bound);                     // in [0, bound); bound is at least 1
  bool chance(double probability) { return uniform() < probability; }

 private:
  uint64_t next();
  uint64_t state_;
};

// Something done to samples before they become a batch. One transform may be used by several threads at once.
class Transform {
 public:
  virtual ~Transform() = default;
  // `sample`: a batch of one. Pictures are uint8 or floating [1, channels, height, width], masks integer or bool
  // [1, height, width]; what moves pixels moves those of both.
  virtual void apply(Batch& sample, SampleRandom& random) const;
  // To the whole batch, once all of its samples are stacked.
  virtual void apply_to_batch(Batch& batch, SampleRandom& random) const;
  // Gives the batch that people look at back what apply() changed for the model's sake: Normalize the pictures' values.
  virtual void undo_for_show(Batch& batch) const;
};

using Transforms = std::vector<std::unique_ptr<const Transform>>;

// The samples of another dataset, each through all transforms in their order. Without SampleDraw (get()) the random
// ones draw those of seed 0 and pass 0. What the other dataset draws itself follows from a seed of its own.
class TransformedDataset : public DatasetView {
 public:
  TransformedDataset(std::shared_ptr<const Dataset> dataset, Transforms transforms);

  Batch draw(const std::vector<int64_t>& indices, const std::vector<SampleDraw>& draws) const override;
  Batch denormalized(const Batch& batch, const std::vector<int64_t>& indices) const override;
  bool in_memory() const override { return false; }  // a transform may take long

 private:
  Transforms transforms_;
};

struct ChannelsFirstOptions {
  std::string tensor = "image";
  static const OptionFields& fields();
};
struct ResizeOptions {
  std::vector<int64_t> size;  // height and width in pixels, or one number for both
  static const OptionFields& fields();
};
struct CropOptions {
  std::vector<int64_t> size;
  int64_t padding = 0;  // pixels added on each side before, black; 255 in masks, false in those of bool
  bool random = true;   // false: from the middle
  static const OptionFields& fields();
};
struct RandomResizedCropOptions {
  std::vector<int64_t> size;
  std::array<double, 2> scale = {0.08, 1.0};             // share of the picture's area that is cut out
  std::array<double, 2> ratio = {3.0 / 4.0, 4.0 / 3.0};  // width to height of what is cut out
  static const OptionFields& fields();
};
struct RandomFlipOptions {
  double chance = 0.5;
  std::string direction = "horizontal";  // or vertical
  static const OptionFields& fields();
};
struct RandomRotationOptions {
  double degrees = 10;  // to either side, around the middle
  static const OptionFields& fields();
};
struct ColorJitterOptions {
  double brightness = 0, contrast = 0, saturation = 0;  // factors are drawn from [1 - x, 1 + x]
  static const OptionFields& fields();
};
struct NormalizeOptions {
  std::vector<double> mean = {0.5}, std = {0.5};  // one number, or one per channel, of values in [0, 1]
  static const OptionFields& fields();
};
struct CutoutOptions {
  int64_t size = 8;  // side of the square that becomes 0, in pixels
  double chance = 1.0;
  static const OptionFields& fields();
};
struct MixupOptions {
  double alpha = 0.2;       // of the Beta distribution of the share
  int64_t num_classes = 0;  // targets become float32 [N, num_classes]
  static const OptionFields& fields();
};
struct OneHotOptions {
  int64_t num_classes = 0;
  static const OptionFields& fields();
};

// [height, width] or [height, width, channels] to [channels, height, width], as the other transforms and models read
// it.
std::unique_ptr<const Transform> make_channels_first(const ChannelsFirstOptions& options);
// Pictures bilinear (antialiased where they shrink), masks by the nearest pixel.
std::unique_ptr<const Transform> make_resize(const ResizeOptions& options);
std::unique_ptr<const Transform> make_crop(const CropOptions& options);
std::unique_ptr<const Transform> make_random_resized_crop(const RandomResizedCropOptions& options);
std::unique_ptr<const Transform> make_random_flip(const RandomFlipOptions& options);
std::unique_ptr<const Transform> make_random_rotation(const RandomRotationOptions& options);
std::unique_ptr<const Transform> make_color_jitter(const ColorJitterOptions& options);
std::unique_ptr<const Transform> make_normalize(const NormalizeOptions& options);
std::unique_ptr<const Transform> make_cutout(const CutoutOptions& options);
// x * share + x of the sample before it * (1 - share), likewise the targets (Zhang et al. 2018); uint8 is divided by
// 255.
std::unique_ptr<const Transform> make_mixup(const MixupOptions& options);
std::unique_ptr<const Transform> make_one_hot(const OneHotOptions& options);

}  // namespace duet
