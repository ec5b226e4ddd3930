#pragma once

#include <cstdint>
#include <memory>
#include <duet/base/options.h>
#include <duet/core/losses.h>

namespace duet {
class Task;
}

struct ViTOptions {
  int64_t num_classes = 10;
  int64_t in_channels = 3;
  int64_t image_size = 32;  // height and width of the images, a multiple of patch_size
  int64_t patch_size = 4;
  int64_t width = 192;  // a multiple of heads
  int64_t depth = 6;
  int64_t heads = 3;
  double dropout = 0.0;  // after the embedding and each branch, in [0, 1)
  duet::LossOptions loss{};

  static const duet::OptionFields& fields();
};

// A vision transformer (Dosovitskiy et al. 2020) with the names of timm, so that its weights load. Takes "image" and
// "target" as SmallCnn.
std::unique_ptr<duet::Task> make_vit(const ViTOptions& options = {});
