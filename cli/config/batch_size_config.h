#pragma once

#include <cstdint>
#include "cli/config/config_options.h"

namespace duet {

struct TrainerOptions;

// `auto_scale_lr` as mmengine's: with a step of n samples all learning rates are multiplied by n / base_batch_size.
struct AutoScaleLrOptions {
  bool enable = false;
  int64_t base_batch_size = 0;  // samples of a step that the learning rates are meant for
  static const OptionFields& fields();
};

// LiBai's arithmetic: trainer.global_batch_size = data.train.batch_size * processes * trainer.accumulate. Where it is
// given, sets the one of the others that is not (batch_size, if neither is, at one micro-batch). Throws ConfigError if
// it does not come out even.
void fit_batch_size(ConfigNode root, int64_t world_size);

// Does what `auto_scale_lr` says, for steps of `batch_size` samples over all processes and micro-batches.
void scale_learning_rates(const ConfigNode& root, int64_t batch_size, TrainerOptions& trainer);

}  // namespace duet
