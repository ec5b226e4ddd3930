#pragma once

#include <cstdint>
#include <string>
#include <vector>
#include "hooks/visualization_hook.h"

namespace duet {

// A picture of one sample, uint8 [height, width, 3] RGB on the CPU. Grey levels run from the image's smallest value to
// its largest.
//   regions: predictions [N, C, H, W] or class numbers [N, H, W]. Image, ground truth, prediction side by side, classes
//   in their colours.
//   classes: predictions [N, C] or class numbers [N]. The image in a green frame if the class is right and a red one if
//   not; below it on the left the colour of the true class, on the right that of the predicted one.
// Without a target the picture shows the prediction alone.
class SamplePainter {
 public:
  // Throws ConfigError for options out of range.
  explicit SamplePainter(SamplePainterOptions options = {});

  // Throws ConfigError if there is no image or prediction of such a shape, DataError for a class without a colour.
  at::Tensor operator()(const Batch& batch, const NamedTensors& outputs, int64_t sample) const;

 private:
  at::Tensor colours_of(const at::Tensor& classes) const;
  at::Tensor paint_regions(const at::Tensor& image, const at::Tensor& truth, const at::Tensor& predicted) const;
  at::Tensor paint_class(const at::Tensor& image, const at::Tensor& truth, const at::Tensor& predicted) const;
  at::Tensor zoomed(const at::Tensor& picture) const;

  SamplePainterOptions options_;
  at::Tensor palette_;  // uint8 [classes, 3]
};

}  // namespace duet
