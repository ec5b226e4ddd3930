#include "data/detail/pixels.h"
#include <cmath>
#include <string>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_upsample_bilinear2d_aa.h>
#include <ATen/ops/_upsample_nearest_exact2d.h>
#include <ATen/ops/affine_grid_generator.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/grid_sampler.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <c10/util/StringUtil.h>
#include "base/error.h"
#include "io/plain_tensor.h"

namespace duet {

namespace {

// Few pictures are 1 or 3 pixels wide and have more than 4 channels.
bool has_channels_last(const at::Tensor& picture) {
  constexpr int64_t kChannels = 4;
  const int64_t last = picture.size(3);
  return (last == 1 || last == 3) && picture.size(1) > kChannels && picture.size(2) > kChannels;
}

// Rows of a rotation by `angle`, in units of a picture's half height and width.
at::Tensor rotation_grid(const at::Tensor& picture, double angle) {
  const double aspect = static_cast<double>(picture.size(3)) / static_cast<double>(picture.size(2));
  const double c = std::cos(angle), s = std::sin(angle);
  const at::Tensor rows = at::tensor({c, -s / aspect, 0.0, s * aspect, c, 0.0}, picture.options()).view({1, 2, 3});
  return at::affine_grid_generator(rows, picture.sizes(), /*align_corners=*/false);
}

constexpr int64_t kBilinear = 0, kNearest = 1;

at::Tensor rotated_by(const at::Tensor& picture, double angle, int64_t interpolation) {
  return at::grid_sampler(picture, rotation_grid(picture, angle), interpolation, /*padding_mode=*/0,
                          /*align_corners=*/false);
}

}  // namespace

bool is_picture(const at::Tensor& tensor) {
  return tensor.dim() == 4 && (tensor.is_floating_point() || tensor.scalar_type() == at::kByte);
}

bool is_mask(const at::Tensor& tensor) {
  const bool has_extent = tensor.dim() == 3 || tensor.dim() == 4;
  return has_extent && at::isIntegralType(tensor.scalar_type(), /*includeBool=*/true) && !is_picture(tensor);
}

const at::Tensor& picture_of(const Batch& sample, const char* transform) {
  for (const auto& [name, tensor] : sample.items()) {
    if (!is_picture(tensor)) continue;
    if (!has_channels_last(tensor)) return tensor;
  }
  throw ConfigError(
      c10::str("[", transform, "] found no picture in a sample: ", tensors_text(sample.items(), /*skipped=*/1),
               "; expected uint8 or float32 [channels, height, width]; add {type: ChannelsFirst, tensor: ",
               "<tensor>} before it where channels come last or there are none, cast: {<tensor>: float32} ",
               "for other integers, or leave ", transform, " out"));
}

std::pair<int64_t, int64_t> extent_of(const Batch& sample, const char* transform) {
  const at::Tensor& picture = picture_of(sample, transform);
  const std::pair<int64_t, int64_t> extent{picture.size(2), picture.size(3)};
  for (const auto& [name, tensor] : sample.items()) {
    const bool has_extent = tensor.dim() >= 3 && std::pair(tensor.size(-2), tensor.size(-1)) == extent;
    const bool is_map = tensor.dim() == 3 && tensor.is_floating_point() && has_extent;  // of depths, say
    const bool moves = is_picture(tensor) || is_mask(tensor);
    if (!is_map && (has_extent || !moves)) continue;
    throw DataError(c10::str(
        "[", transform, "] found '", name, "' ", tensor.scalar_type(), tensor.sizes().slice(1), " beside a picture of ",
        extent.first, " x ", extent.second, " pixels, expected a picture ",
        "or a mask of integers of its size, which moves with it; add {type: ", is_map ? "ChannelsFirst" : "Resize",
        "} before it"));
  }
  return extent;
}

double ignored_label(const at::Tensor& mask, const char* transform) {
  constexpr double kIgnoredLabel = 255;
  if (mask.scalar_type() == at::kBool) return 0;
  if (mask.scalar_type() != at::kChar) return kIgnoredLabel;
  throw DataError(c10::str("[", transform, "] found a mask int8, expected a dtype that holds the label 255, which ",
                           "pixels from outside get; set cast: {<mask>: int64}"));
}

at::Tensor resized(const at::Tensor& picture, at::IntArrayRef size) {
  return at::_upsample_bilinear2d_aa(picture, size, /*align_corners=*/false);
}

// "exact": pixels lie at halves, as those of pictures do.
at::Tensor resized_mask(const at::Tensor& mask, at::IntArrayRef size) {
  return as_labels(mask, [&](const at::Tensor& labels) { return at::_upsample_nearest_exact2d(labels, size); });
}

at::Tensor cut(const at::Tensor& pixels, std::array<int64_t, 4> box) {
  return pixels.slice(-2, box[0], box[0] + box[2]).slice(-1, box[1], box[1] + box[3]);
}

at::Tensor padded(const at::Tensor& pixels, int64_t width, double value) {
  return width == 0 ? pixels : at::constant_pad_nd(pixels, {width, width, width, width}, value);
}

at::Tensor rotated(const at::Tensor& picture, double angle) { return rotated_by(picture, angle, kBilinear); }

// Labels are shifted by one for the while: 0 is what comes from outside.
at::Tensor rotated_mask(const at::Tensor& mask, double angle, double ignored) {
  return as_labels(mask, [&](const at::Tensor& labels) {
    const at::Tensor moved = rotated_by(labels + 1, angle, kNearest);
    return at::where(moved == 0, at::full_like(moved, ignored), moved - 1);
  });
}

}  // namespace duet
