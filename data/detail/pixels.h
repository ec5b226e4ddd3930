#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>
#include <ATen/core/Tensor.h>
#include "base/batch.h"

namespace duet {

// Which tensors of a sample (a batch of one) hold pixels, and how these are moved.

// uint8 or floating [N, channels, height, width].
bool is_picture(const at::Tensor& tensor);
// Integer or bool [N, height, width], or with channels where it is no picture.
bool is_mask(const at::Tensor& tensor);

// The first picture. Throws ConfigError that names the sample's tensors if there is none, or if its channels come last.
const at::Tensor& picture_of(const Batch& sample, const char* transform);
// Its height and width, which all pictures and masks have in common. Throws DataError if they do not.
std::pair<int64_t, int64_t> extent_of(const Batch& sample, const char* transform);

// What masks hold where no pixel comes from: 255, which is ignored; false in those of bool. Throws DataError for a
// dtype without a 255.
double ignored_label(const at::Tensor& mask, const char* transform);

// Calls of_picture(float32 picture) or of_mask(mask) for each tensor that has pixels; they keep their dtypes.
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

// A mask moved as a picture float64, which holds every label; its pixels come from the nearest ones.
template <class Move>
at::Tensor as_labels(const at::Tensor& mask, Move move) {
  const bool has_channels = mask.dim() == 4;
  const at::Tensor moved = move((has_channels ? mask : mask.unsqueeze(1)).to(at::kDouble)).to(mask.scalar_type());
  return has_channels ? moved : moved.squeeze(1);
}

at::Tensor resized(const at::Tensor& picture, at::IntArrayRef size);
at::Tensor resized_mask(const at::Tensor& mask, at::IntArrayRef size);
// `box`: top, left, height and width.
at::Tensor cut(const at::Tensor& pixels, std::array<int64_t, 4> box);
at::Tensor padded(const at::Tensor& pixels, int64_t width, double value);
// By `angle` in radians around the middle.
at::Tensor rotated(const at::Tensor& picture, double angle);
// What comes from outside becomes `ignored`.
at::Tensor rotated_mask(const at::Tensor& mask, double angle, double ignored);

}  // namespace duet
