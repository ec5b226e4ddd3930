#pragma once

#include <string>
#include "core/train_context.h"

namespace duet {

// Makes the folder for the checkpoints of a run, in its work dir or where out_dir says, and returns it. Throws
// ConfigError if it cannot be written or is another run's.
std::string make_checkpoint_folder(const TrainContext& context, const std::string& out_dir);

}  // namespace duet
