#pragma once

#include <string>
#include <vector>
#include "base/state_dict.h"
#include "core/train_context.h"

namespace duet {

// Makes the folder for the checkpoints of a run, in its work dir or where out_dir says, and returns it. Throws
// ConfigError if it cannot be written or is another run's.
std::string make_checkpoint_folder(const TrainContext& context, const std::string& out_dir);

// What a checkpoint has below names such as "model" or "hooks.ema.weights", of a single one without it. A name that has
// nothing below it is warned of.
StateDict load_below(const std::vector<std::string>& keys, const std::string& checkpoint);

}  // namespace duet
