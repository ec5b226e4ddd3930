#pragma once

#include <cstdint>
#include <string>
#include <vector>
#include "cli/config/config.h"
#include "core/trainer_options.h"

namespace duet {

// `optimizer`: torch.optim's names, each with what it has, and those of register_optimizer().
OptimizerOptions read_optimizer(const ConfigNode& node);
// What `optim_wrapper` holds beside its sections, of TrainerOptions.
const OptionFields& optim_wrapper_fields();

// `optim_wrapper`: optimizer, clip_grad, amp, loss_scale, non_finite, constructor and paramwise_cfg.
void read_optim_wrapper(const ConfigNode& node, TrainerOptions& options);

}  // namespace duet
