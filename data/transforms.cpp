#include <algorithm>
#include <cmath>
#include <functional>
#include <numbers>
#include <utility>
#include <ATen/TensorIndexing.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_upsample_bilinear2d_aa.h>
#include <ATen/ops/_upsample_nearest_exact2d.h>
#include <ATen/ops/affine_grid_generator.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/flip.h>
#include <ATen/ops/grid_sampler.h>
#include <ATen/ops/one_hot.h>
#include <ATen/ops/tensor.h>
#include <c10/util/StringUtil.h>
#include <c10/util/irange.h>
#include "base/error.h"
#include "data/transform.h"

namespace duet {

namespace {

constexpr double kIgnoredLabel = 255;

bool is_picture(const at::Tensor& tensor) {
  return tensor.dim() == 4 && (tensor.is_floating_point() || tensor.scalar_type() == at::kByte);
}
bool is_mask(const at::Tensor& tensor) { return tensor.dim() == 3 && tensor.scalar_type() == at::kLong; }

// Height and width of what is to be moved; the same for all pictures and masks of a sample.
std::pair<int64_t, int64_t> extent_of(const Batch& sample) {
  for (const auto& [name, tensor] : sample.items()) {
    if (is_picture(tensor) || is_mask(tensor)) return {tensor.size(-2), tensor.size(-1)};
  }
  throw ConfigError(
      "[Transform] the samples hold no picture [channels, height, width] and no mask [height, width]; "
      "leave out transforms that move pixels");
}

// Calls of_picture(float32 picture) or of_mask(mask) for each tensor that has pixels.
template <class OfPicture, class OfMask>
void for_pixels(Batch& sample, OfPicture of_picture, OfMask of_mask) {
  for (const auto& [name, tensor] : NamedTensors(sample.items())) {
    if (is_picture(tensor)) {
      const at::Tensor moved = of_picture(tensor.to(at::kFloat));
      const bool was_bytes = tensor.scalar_type() == at::kByte;
      sample.set(name, was_bytes ? moved.round().clamp(0, 255).to(at::kByte) : moved.to(tensor.scalar_type()));
    } else if (is_mask(tensor)) {
      sample.set(name, of_mask(tensor));
    }
  }
}

// Nearest pixels, in float64, which holds every label.
template <class Move>
at::Tensor as_labels(const at::Tensor& mask, Move move) {
  return move(mask.unsqueeze(1).to(at::kDouble)).squeeze(1).to(at::kLong);
}

at::Tensor resized(const at::Tensor& picture, at::IntArrayRef size) {
  return at::_upsample_bilinear2d_aa(picture, size, /*align_corners=*/false);
}
// "exact": pixels lie at halves, as those of pictures do.
at::Tensor resized_mask(const at::Tensor& mask, at::IntArrayRef size) {
  return as_labels(mask, [&](const at::Tensor& labels) { return at::_upsample_nearest_exact2d(labels, size); });
}

at::Tensor cut(const at::Tensor& tensor, std::array<int64_t, 4> box) {
  return tensor.slice(-2, box[0], box[0] + box[2]).slice(-1, box[1], box[1] + box[3]);
}

std::vector<int64_t> both(const std::vector<int64_t>& size) {
  return size.size() == 1 ? std::vector<int64_t>{size[0], size[0]} : size;
}

// A transform of one sample by a function.
class SampleTransform : public Transform {
 public:
  using Function = std::function<void(Batch& sample, SampleRandom& random)>;
  explicit SampleTransform(Function function) : function_(std::move(function)) {}
  void apply(Batch& sample, SampleRandom& random) const override { function_(sample, random); }

 private:
  Function function_;
};

class BatchTransform : public Transform {
 public:
  using Function = std::function<void(Batch& batch, SampleRandom& random)>;
  explicit BatchTransform(Function function) : function_(std::move(function)) {}
  void apply_to_batch(Batch& batch, SampleRandom& random) const override { function_(batch, random); }

 private:
  Function function_;
};

std::unique_ptr<const Transform> of_sample(SampleTransform::Function function) {
  return std::make_unique<SampleTransform>(std::move(function));
}

class Normalize : public Transform {
 public:
  explicit Normalize(NormalizeOptions options) : options_(std::move(options)) {}

  void apply(Batch& sample, SampleRandom& /*random*/) const override {
    for (const auto& [name, tensor] : NamedTensors(sample.items())) {
      if (!is_picture(tensor)) continue;
      const at::Tensor values = tensor.scalar_type() == at::kByte ? tensor.to(at::kFloat) / 255 : tensor;
      check_channels(name, tensor.size(1));
      sample.set(name, (values - row(options_.mean, values)) / row(options_.std, values));
    }
  }
  void undo_for_show(Batch& batch) const override {
    for (const auto& [name, tensor] : NamedTensors(batch.items())) {
      if (!is_picture(tensor) || !tensor.is_floating_point()) continue;
      const at::Tensor values = tensor.to(at::kFloat);
      batch.set(name, values * row(options_.std, values) + row(options_.mean, values));
    }
  }

 private:
  static at::Tensor row(const std::vector<double>& numbers, const at::Tensor& values) {
    return at::tensor(numbers, values.options()).view({1, -1, 1, 1});
  }
  void check_channels(const std::string& name, int64_t count) const {
    const auto channels = static_cast<std::size_t>(count);
    const auto fits = [channels](const std::vector<double>& numbers) {
      return numbers.size() == 1 || numbers.size() == channels;
    };
    if (fits(options_.mean) && fits(options_.std)) return;
    throw ConfigError(c10::str("[Normalize] found ", options_.mean.size(), " means and ", options_.std.size(),
                               " stds for '", name, "' of ", channels, " channels, expected one or one per channel"));
  }

  NormalizeOptions options_;
};

at::Tensor padded(const at::Tensor& tensor, int64_t pixels, double value) {
  return pixels == 0 ? tensor : at::constant_pad_nd(tensor, {pixels, pixels, pixels, pixels}, value);
}

// Rows of a rotation by `angle`, in units of a picture's half height and width.
at::Tensor rotation_grid(const at::Tensor& picture, double angle) {
  const double aspect = static_cast<double>(picture.size(3)) / static_cast<double>(picture.size(2));
  const double c = std::cos(angle), s = std::sin(angle);
  const at::Tensor rows = at::tensor({c, -s / aspect, 0.0, s * aspect, c, 0.0}, picture.options()).view({1, 2, 3});
  return at::affine_grid_generator(rows, picture.sizes(), /*align_corners=*/false);
}

at::Tensor rotated(const at::Tensor& picture, double angle, int64_t interpolation) {
  return at::grid_sampler(picture, rotation_grid(picture, angle), interpolation, /*padding_mode=*/0,
                          /*align_corners=*/false);
}

// What comes from outside is ignored: labels are shifted by one for the while.
at::Tensor rotated_mask(const at::Tensor& mask, double angle) {
  constexpr int64_t kNearest = 1;
  return as_labels(mask, [&](const at::Tensor& labels) {
    const at::Tensor moved = rotated(labels + 1, angle, kNearest);
    return at::where(moved == 0, at::full_like(moved, kIgnoredLabel), moved - 1);
  });
}

at::Tensor grey_of(const at::Tensor& picture) {
  if (picture.size(1) != 3) return picture.mean(1, /*keepdim=*/true);
  const at::Tensor weights = at::tensor({0.299, 0.587, 0.114}, picture.options()).view({1, 3, 1, 1});
  return (picture * weights).sum(1, /*keepdim=*/true);
}

double factor(double range, SampleRandom& random) { return random.uniform(std::max(0.0, 1 - range), 1 + range); }

at::Tensor jittered(at::Tensor picture, std::array<double, 3> factors, double white) {
  picture = (picture * factors[0]).clamp(0, white);
  const at::Tensor middle = grey_of(picture).mean();
  picture = (middle + (picture - middle) * factors[1]).clamp(0, white);
  const at::Tensor grey = grey_of(picture);
  return (grey + (picture - grey) * factors[2]).clamp(0, white);
}

// Height and width of a share of the area, and where it lies.
std::array<int64_t, 4> drawn_box(const RandomResizedCropOptions& o, int64_t height, int64_t width,
                                 SampleRandom& random) {
  constexpr int kTries = 10;  // as torchvision
  for (int i = 0; i < kTries; ++i) {
    const double area = static_cast<double>(height * width) * random.uniform(o.scale[0], o.scale[1]);
    const double ratio = std::exp(random.uniform(std::log(o.ratio[0]), std::log(o.ratio[1])));
    const auto w = static_cast<int64_t>(std::lround(std::sqrt(area * ratio)));
    const auto h = static_cast<int64_t>(std::lround(std::sqrt(area / ratio)));
    if (w < 1 || h < 1 || w > width || h > height) continue;
    return {random.below(height - h + 1), random.below(width - w + 1), h, w};
  }
  return {0, 0, height, width};
}

// A number of the standard normal distribution (Box and Muller 1958).
double drawn_normal(SampleRandom& random) {
  constexpr double kTwoPi = 6.283185307179586;
  const double radius = std::sqrt(-2 * std::log(1 - random.uniform()));
  return radius * std::cos(kTwoPi * random.uniform());
}

// The logarithm of a number of the distribution Gamma(alpha, 1) (Marsaglia and Tsang 2000): for a small alpha the
// number itself may be 0.
double drawn_log_gamma(double alpha, SampleRandom& random) {
  if (alpha < 1) return drawn_log_gamma(alpha + 1, random) + std::log(1 - random.uniform()) / alpha;
  const double d = alpha - 1.0 / 3, c = 1 / std::sqrt(9 * d);
  while (true) {
    const double x = drawn_normal(random), v = std::pow(1 + c * x, 3);
    if (v > 0 && std::log(1 - random.uniform()) < x * x / 2 + d - d * v + d * std::log(v)) return std::log(d * v);
  }
}

// A number of the distribution Beta(alpha, alpha).
double drawn_beta(double alpha, SampleRandom& random) {
  const double x = drawn_log_gamma(alpha, random), y = drawn_log_gamma(alpha, random);
  return 1 / (1 + std::exp(y - x));
}

at::Tensor one_hot_targets(const Batch& batch, int64_t num_classes, const char* transform) {
  const at::Tensor& target = batch["target"];
  if (target.is_floating_point()) return target;
  if (target.dim() != 1) {
    throw DataError(c10::str("[", transform, "] found a target ", target.sizes(), " of ", target.dim(),
                             " dimensions, expected 1, a class for each sample; leave ", transform, " out"));
  }
  const at::Tensor labels = target.to(at::kLong);
  for (const int64_t at : c10::irange(labels.numel())) {
    const auto label = labels[at].item<int64_t>();
    if (label >= 0 && label < num_classes) continue;
    throw DataError(c10::str("[", transform, "] found the label ", label, " with num_classes ", num_classes,
                             ", expected 0 to ", num_classes - 1, "; raise num_classes or correct the data"));
  }
  return at::one_hot(labels, num_classes).to(at::kFloat);
}

// Rounding, as by Resize, may lead a little outside.
void check_jitter_range(const std::string& name, const at::Tensor& picture) {
  if (picture.numel() == 0) return;
  const double low = picture.min().item<double>(), high = picture.max().item<double>();
  if (low >= -1e-3 && high <= 1 + 1e-3) return;
  throw DataError(c10::str("[ColorJitter] found values from ", low, " to ", high, " in '", name,
                           "', expected uint8 or numbers in [0, 1]; put ColorJitter before Normalize"));
}

}  // namespace

std::unique_ptr<const Transform> make_resize(const ResizeOptions& options) {
  check_options(options);
  return of_sample([size = both(options.size)](Batch& sample, SampleRandom&) {
    for_pixels(
        sample, [&](const at::Tensor& picture) { return resized(picture, size); },
        [&](const at::Tensor& mask) { return resized_mask(mask, size); });
  });
}

std::unique_ptr<const Transform> make_crop(const CropOptions& options) {
  check_options(options);
  return of_sample([options, size = both(options.size)](Batch& sample, SampleRandom& random) {
    const auto [inner_height, inner_width] = extent_of(sample);
    const int64_t height = inner_height + 2 * options.padding, width = inner_width + 2 * options.padding;
    if (height < size[0] || width < size[1]) {
      throw DataError(c10::str("[Crop] found a picture of ", height, " x ", width, " pixels with padding, expected ",
                               "at least ", size[0], " x ", size[1], "; add Resize before it, or padding"));
    }
    const int64_t down = height - size[0], right = width - size[1];
    const int64_t top = options.random ? random.below(down + 1) : down / 2;
    const int64_t left = options.random ? random.below(right + 1) : right / 2;
    const std::array<int64_t, 4> box{top, left, size[0], size[1]};
    for_pixels(
        sample, [&](const at::Tensor& picture) { return cut(padded(picture, options.padding, 0), box); },
        [&](const at::Tensor& mask) { return cut(padded(mask, options.padding, kIgnoredLabel), box); });
  });
}

std::unique_ptr<const Transform> make_random_resized_crop(const RandomResizedCropOptions& options) {
  check_options(options);
  return of_sample([options, size = both(options.size)](Batch& sample, SampleRandom& random) {
    const auto [height, width] = extent_of(sample);
    const auto box = drawn_box(options, height, width, random);
    for_pixels(
        sample, [&](const at::Tensor& picture) { return resized(cut(picture, box), size); },
        [&](const at::Tensor& mask) { return resized_mask(cut(mask, box), size); });
  });
}

std::unique_ptr<const Transform> make_random_flip(const RandomFlipOptions& options) {
  check_options(options);
  const int64_t side = options.direction == "horizontal" ? -1 : -2;
  return of_sample([chance = options.chance, side](Batch& sample, SampleRandom& random) {
    if (!random.chance(chance)) return;
    const auto flip = [side](const at::Tensor& pixels) { return at::flip(pixels, side); };
    for_pixels(sample, flip, flip);
  });
}

std::unique_ptr<const Transform> make_random_rotation(const RandomRotationOptions& options) {
  check_options(options);
  constexpr int64_t kBilinear = 0;
  return of_sample([limit = options.degrees](Batch& sample, SampleRandom& random) {
    const double angle = random.uniform(-limit, limit) * std::numbers::pi / 180;
    for_pixels(
        sample, [&](const at::Tensor& picture) { return rotated(picture, angle, kBilinear); },
        [&](const at::Tensor& mask) { return rotated_mask(mask, angle); });
  });
}

std::unique_ptr<const Transform> make_color_jitter(const ColorJitterOptions& options) {
  check_options(options);
  return of_sample([o = options](Batch& sample, SampleRandom& random) {
    const std::array<double, 3> factors{factor(o.brightness, random), factor(o.contrast, random),
                                        factor(o.saturation, random)};
    for (const auto& [name, tensor] : NamedTensors(sample.items())) {
      if (!is_picture(tensor)) continue;
      const bool bytes = tensor.scalar_type() == at::kByte;
      if (!bytes) check_jitter_range(name, tensor);
      const at::Tensor changed = jittered(tensor.to(at::kFloat), factors, bytes ? 255 : 1);
      sample.set(name, bytes ? changed.round().to(at::kByte) : changed);
    }
  });
}

std::unique_ptr<const Transform> make_normalize(const NormalizeOptions& options) {
  check_options(options);
  return std::make_unique<Normalize>(options);
}

std::unique_ptr<const Transform> make_cutout(const CutoutOptions& options) {
  check_options(options);
  return of_sample([o = options](Batch& sample, SampleRandom& random) {
    if (!random.chance(o.chance)) return;
    const auto [height, width] = extent_of(sample);
    const int64_t y = random.below(height) - o.size / 2, x = random.below(width) - o.size / 2;
    const std::array<int64_t, 4> box{std::max<int64_t>(y, 0), std::max<int64_t>(x, 0),
                                     std::min(y + o.size, height) - std::max<int64_t>(y, 0),
                                     std::min(x + o.size, width) - std::max<int64_t>(x, 0)};
    for (const auto& [name, tensor] : NamedTensors(sample.items())) {
      if (!is_picture(tensor)) continue;
      at::Tensor changed = tensor.clone();
      cut(changed, box).zero_();
      sample.set(name, changed);
    }
  });
}

std::unique_ptr<const Transform> make_mixup(const MixupOptions& options) {
  check_options(options);
  return std::make_unique<BatchTransform>([o = options](Batch& batch, SampleRandom& random) {
    const double share = drawn_beta(o.alpha, random);
    batch.set("target", one_hot_targets(batch, o.num_classes, "Mixup"));
    for (const auto& [name, tensor] : NamedTensors(batch.items())) {
      const at::Tensor values = tensor.scalar_type() == at::kByte ? tensor.to(at::kFloat) / 255 : tensor;
      if (values.is_floating_point()) batch.set(name, values * share + values.roll(1, 0) * (1 - share));
    }
  });
}

std::unique_ptr<const Transform> make_one_hot(const OneHotOptions& options) {
  check_options(options);
  return of_sample([count = options.num_classes](Batch& sample, SampleRandom&) {
    sample.set("target", one_hot_targets(sample, count, "OneHot"));
  });
}

}  // namespace duet
