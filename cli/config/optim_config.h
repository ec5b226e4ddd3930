#pragma once

#include "cli/config/config.h"
#include "core/trainer_options.h"
#include "optim/groups/param_group.h"

namespace duet {

// What `optim_wrapper` holds beside its sections, of TrainerOptions.
const OptionFields& optim_wrapper_fields();
// `optim_wrapper`: optimizer, clip_grad, amp, loss_scale, non_finite, constructor and paramwise_cfg.
void read_optim_wrapper(const ConfigNode& node, TrainerOptions& options);

// mmengine's two constructors, as the registry takes them.
ParamGroupsFn paramwise_constructor(const ConfigNode& paramwise_cfg);
ParamGroupsFn layer_decay_constructor(const ConfigNode& paramwise_cfg);

}  // namespace duet
