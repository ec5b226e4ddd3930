#pragma once

#include <duet/core/trainer.h>
#include <duet/optim/update.h>

#include <string>

namespace duet {

// What either trainer is built from.
struct TrainerOptions {
  OptimizerOptions optimizer;
  std::optional<ClipGradOptions> clip_grad;  // none: no clipping
  std::optional<at::ScalarType> amp;         // at::kBFloat16: autocast; none: full precision
  LoopOptions loop;
  std::string device = "auto";               // see parse_device

  // Throws ConfigError naming the field and its range.
  void validate() const;
  UpdateOptions update() const { return {optimizer, clip_grad, amp}; }
};

}  // namespace duet
