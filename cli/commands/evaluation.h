#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>
#include "cli/build.h"

namespace duet {

// A model with the weights of a checkpoint and the data to run it on.
struct Evaluation {
  std::string checkpoint;       // its folder, or a file of weights
  std::optional<int64_t> step;  // that it was saved after; nothing for a file of weights
  Run run;                      // hooks included; they have what the checkpoint holds of them; run.test is the data
};

// `checkpoint`: as --checkpoint says. With `output` predictions are written into that folder. All processes of the run
// call it together. Throws CheckpointError if there is none, and for a file of weights that does not hold exactly those
// of the model.
Evaluation open_evaluation(const RunConfig& config, const std::vector<DataConfig>& data, const std::string& checkpoint,
                           const std::string& output = "");

}  // namespace duet
