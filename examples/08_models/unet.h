#pragma once

#include <cstdint>
#include <memory>
#include <vector>
#include <duet/base/options.h>
#include <duet/core/losses.h>

namespace duet {
class Task;
}

struct UNetOptions {
  int64_t num_classes = 2;  // background included; 255 in the target is ignored
  int64_t in_channels = 3;
  std::vector<int64_t> channels = {16, 32, 64};  // of the levels; each after the first halves the resolution
  duet::LossOptions loss{};                      // cross_entropy, dice or focal

  static const duet::OptionFields& fields();
};

// Semantic segmentation by a U-Net (Ronneberger et al. 2015) with batch norm. Takes "image" [N, in_channels, H, W],
// sides multiples of 2^(levels - 1), and "target" int64 [N, H, W]; "prediction" is logits [N, num_classes, H, W].
std::unique_ptr<duet::Task> make_unet(const UNetOptions& options = {});
