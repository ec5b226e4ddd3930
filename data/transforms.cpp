#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <numbers>
#include <utility>
#include <ATen/TensorIndexing.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/flip.h>
#include <ATen/ops/one_hot.h>
#include <ATen/ops/tensor.h>
#include <c10/util/StringUtil.h>
#include <c10/util/irange.h>
#include "base/error.h"
#include "data/detail/pixels.h"
#include "data/transform.h"

namespace duet {

namespace {

constexpr double kRounding = 1e-3;  // by which Resize and others may lead outside of [0, 1]

std::vector<int64_t> both(const std::vector<int64_t>& size) {
  return size.size() == 1 ? std::vector<int64_t>{size[0], size[0]} : size;
}

// By a function of a sample, or of the whole batch.
using Function = std::function<void(Batch& batch, SampleRandom& random)>;

class FunctionTransform : public Transform {
 public:
  FunctionTransform(Function of_sample, Function of_batch)
      : of_sample_(std::move(of_sample)), of_batch_(std::move(of_batch)) {}
  void apply(Batch& sample, SampleRandom& random) const override {
    if (of_sample_) of_sample_(sample, random);
  }
  void apply_to_batch(Batch& batch, SampleRandom& random) const override {
    if (of_batch_) of_batch_(batch, random);
  }

 private:
  Function of_sample_, of_batch_;
};

template <class Options>
std::unique_ptr<const Transform> make_transform(const Options& options, Function of_sample, Function of_batch = {}) {
  check_options(options);
  return std::make_unique<FunctionTransform>(std::move(of_sample), std::move(of_batch));
}

class Normalize : public Transform {
 public:
  explicit Normalize(NormalizeOptions options) : options_(std::move(options)) {}

  void apply(Batch& sample, SampleRandom& /*random*/) const override {
    picture_of(sample, "Normalize");
    for (const auto& [name, tensor] : NamedTensors(sample.items())) {
      if (!is_picture(tensor)) continue;
      const at::Tensor values = tensor.scalar_type() == at::kByte ? tensor.to(at::kFloat) / 255 : tensor;
      check_channels(name, tensor.size(1));
      check_scale(name, values, tensor.scalar_type() == at::kByte);
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
  // Mean and std of one scale and pictures of another: bytes that were cast, or numbers of bytes for pictures in [0,
  // 1], which would become a constant. A picture above 1 tells that they are bytes: a later one may be nearly black.
  void check_scale(const std::string& name, const at::Tensor& values, bool is_unit) const {
    constexpr double kOfBytes = 16;
    if (values.numel() == 0 || is_told_) return;
    const double greatest = std::max(std::ranges::max(options_.mean), std::ranges::max(options_.std));
    const auto most = values.max().item<double>();
    const std::string found = c10::str("[Normalize] found values up to ", most, " in '", name,
                                       "' with a mean or std of ", greatest, ", expected values in [0, 1]; ");
    require<DataError>(greatest > 1 || !(most > kOfBytes),
                       found + "leave uint8 as it is (no cast), or give mean and std of these values");
    if (greatest < kOfBytes) return;
    is_told_ = !is_unit && most > 1 + kRounding;
    require<ConfigError>(is_told_ || most == 0, found + "divide both by 255");
  }

  NormalizeOptions options_;
  mutable std::atomic<bool> is_told_{false};  // that pictures are those of bytes
};

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

at::Tensor with_channels_first(const std::string& name, const at::Tensor& picture) {
  constexpr int64_t kChannels = 4;
  if (picture.dim() == 3) return picture.unsqueeze(1);
  const bool is_so = picture.dim() == 4 && picture.size(1) <= kChannels && picture.size(3) > kChannels;
  if (picture.dim() == 4 && !is_so) return picture.permute({0, 3, 1, 2}).contiguous();
  throw DataError(c10::str("[ChannelsFirst] found '", name, "' ", picture.sizes().slice(1),
                           ", expected [height, width] or [height, width, channels]",
                           is_so ? "; leave ChannelsFirst out" : "; name another tensor"));
}

void check_jitter_range(const std::string& name, const at::Tensor& picture) {
  if (picture.numel() == 0) return;
  const double low = picture.min().item<double>(), high = picture.max().item<double>();
  if (low >= -kRounding && high <= 1 + kRounding) return;
  throw DataError(c10::str("[ColorJitter] found values from ", low, " to ", high, " in '", name,
                           "', expected uint8 or numbers in [0, 1]; put ColorJitter before Normalize"));
}

}  // namespace

std::unique_ptr<const Transform> make_channels_first(const ChannelsFirstOptions& options) {
  return make_transform(options, [name = options.tensor](Batch& sample, SampleRandom&) {
    sample.set(name, with_channels_first(name, sample[name]));
  });
}

std::unique_ptr<const Transform> make_resize(const ResizeOptions& options) {
  return make_transform(options, [size = both(options.size)](Batch& sample, SampleRandom&) {
    picture_of(sample, "Resize");
    for_pixels(
        sample, [&](const at::Tensor& picture) { return resized(picture, size); },
        [&](const at::Tensor& mask) { return resized_mask(mask, size); });
  });
}

std::unique_ptr<const Transform> make_crop(const CropOptions& options) {
  return make_transform(options, [options, size = both(options.size)](Batch& sample, SampleRandom& random) {
    const auto [inner_height, inner_width] = extent_of(sample, "Crop");
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
        [&](const at::Tensor& mask) {
          const double around = options.padding == 0 ? 0 : ignored_label(mask, "Crop");
          return cut(padded(mask, options.padding, around), box);
        });
  });
}

std::unique_ptr<const Transform> make_random_resized_crop(const RandomResizedCropOptions& options) {
  return make_transform(options, [options, size = both(options.size)](Batch& sample, SampleRandom& random) {
    const auto [height, width] = extent_of(sample, "RandomResizedCrop");
    const auto box = drawn_box(options, height, width, random);
    for_pixels(
        sample, [&](const at::Tensor& picture) { return resized(cut(picture, box), size); },
        [&](const at::Tensor& mask) { return resized_mask(cut(mask, box), size); });
  });
}

std::unique_ptr<const Transform> make_random_flip(const RandomFlipOptions& options) {
  const int64_t side = options.direction == "horizontal" ? -1 : -2;
  return make_transform(options, [chance = options.chance, side](Batch& sample, SampleRandom& random) {
    extent_of(sample, "RandomFlip");
    if (!random.chance(chance)) return;
    const auto flip = [side](const at::Tensor& pixels) { return at::flip(pixels, side); };
    for_pixels(sample, flip, flip);
  });
}

std::unique_ptr<const Transform> make_random_rotation(const RandomRotationOptions& options) {
  return make_transform(options, [limit = options.degrees](Batch& sample, SampleRandom& random) {
    extent_of(sample, "RandomRotation");
    const double angle = random.uniform(-limit, limit) * std::numbers::pi / 180;
    for_pixels(
        sample, [&](const at::Tensor& picture) { return rotated(picture, angle); },
        [&](const at::Tensor& mask) { return rotated_mask(mask, angle, ignored_label(mask, "RandomRotation")); });
  });
}

std::unique_ptr<const Transform> make_color_jitter(const ColorJitterOptions& options) {
  return make_transform(options, [o = options](Batch& sample, SampleRandom& random) {
    picture_of(sample, "ColorJitter");
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
  return make_transform(options, [o = options](Batch& sample, SampleRandom& random) {
    const at::Tensor& picture = picture_of(sample, "Cutout");
    if (!random.chance(o.chance)) return;
    const int64_t height = picture.size(2), width = picture.size(3);
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
  return make_transform(options, nullptr, [o = options](Batch& batch, SampleRandom& random) {
    const double share = drawn_beta(o.alpha, random);
    batch.set("target", one_hot_targets(batch, o.num_classes, "Mixup"));
    for (const auto& [name, tensor] : NamedTensors(batch.items())) {
      const at::Tensor values = tensor.scalar_type() == at::kByte ? tensor.to(at::kFloat) / 255 : tensor;
      if (values.is_floating_point()) batch.set(name, values * share + values.roll(1, 0) * (1 - share));
    }
  });
}

std::unique_ptr<const Transform> make_one_hot(const OneHotOptions& options) {
  return make_transform(options, [count = options.num_classes](Batch& sample, SampleRandom&) {
    sample.set("target", one_hot_targets(sample, count, "OneHot"));
  });
}

}  // namespace duet
