#pragma once

#include <cstdint>
#include <memory>
#include <vector>
#include "../../base/options.h"
#include "../../core/losses.h"

namespace duet {

class Task;

struct EncoderDecoderOptions {
  int64_t num_classes = 11;  // background included; 255 in the target is ignored
  int64_t in_channels = 1;
  int64_t patch_size = 2;                             // even: pixels in each direction that the stem makes one of
  std::vector<int64_t> channels = {24, 48, 96, 128};  // of the encoder's stages, 1 to 4; each halves the resolution
  std::vector<int64_t> depths = {1, 1, 2, 1};         // blocks of each stage
  int64_t decoder_channels = 32;
  double drop_path = 0.05;  // chance that a sample skips the last block; less for those before it
  double dropout = 0.1;     // of channels before the last layer; both in [0, 1)
  LossOptions loss{};       // cross_entropy, dice or focal

  static const OptionFields& fields();
};

// Semantic segmentation: a small ConvNeXt ("backbone", with the names that layer-wise learning rates know) and a
// feature pyramid with batch norm ("decode_head"). Takes "image" [N, in_channels, H, W], sides multiples of
// patch_size * 2^(stages - 1), and "target" int64 [N, H, W]; "prediction" is logits [N, num_classes, H, W].
//
// The loss is the cross entropy (or dice, focal), a mean over the pixels that are not ignored. Their number is the
// weight of a batch: read on the host, from the batch as the loader gives it. Logs acc_seg, the share of these pixels
// that are right.
std::unique_ptr<Task> make_encoder_decoder(const EncoderDecoderOptions& options = {});

}  // namespace duet
