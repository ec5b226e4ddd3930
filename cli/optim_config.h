#pragma once

#include <duet/cli/config.h>
#include <duet/optim/trainer_options.h>

#include <cstdint>
#include <vector>

namespace duet {

// `optimizer`: torch.optim's names, each with what it has.
OptimizerOptions read_optimizer(const ConfigNode& node);

// `optim_wrapper`: optimizer, clip_grad, amp, loss_scale, non_finite, constructor and paramwise_cfg.
void read_optim_wrapper(const ConfigNode& node, TrainerOptions& options);

}  // namespace duet
