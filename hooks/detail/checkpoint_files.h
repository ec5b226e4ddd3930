#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>
#include "core/train_context.h"

// Where the checkpoints of a run lie, and what is published of them. Private to hooks/.
namespace duet {

// Makes the folder for the checkpoints of a run, in its work dir or where out_dir says, and returns it. Throws
// ConfigError if it cannot be written or is another run's.
std::string make_checkpoint_folder(const TrainContext& context, const std::string& out_dir);

// Writes "<work_dir>/published/<name>-<8 digits of its hash>.safetensors" for each of the named checkpoints: what it
// has below the published_keys, names such as "model" or "hooks.ema.weights"; of a single one without it. A key that
// has nothing below it is warned of.
void publish_weights(const std::vector<std::string>& keys, const std::map<std::string, std::string>& checkpoints,
                     const TrainContext& context);

// False: write() has failed with a CheckpointError, and the log says so.
bool attempt_save(const TrainContext& context, const std::function<void()>& write);

}  // namespace duet
