#pragma once

#include <map>
#include <string>
#include <vector>
#include "core/train_context.h"

namespace duet {

// Writes "<work_dir>/published/<name>-<8 digits of its hash>.safetensors" for each of the named checkpoints: what it
// has below the published_keys, names such as "model" or "hooks.ema.weights"; of a single one without it. A key that
// has nothing below it is warned of.
void publish_weights(const std::vector<std::string>& keys, const std::map<std::string, std::string>& checkpoints,
                     const TrainContext& context);

}  // namespace duet
