#pragma once

#include <duet/cli/build.h>
#include <duet/core/state_dict.h>

#include <optional>
#include <string>

namespace duet {

// A model with the weights of a checkpoint and the data to run it on, for `duet eval` and `duet predict`.
struct Evaluation {
  std::string checkpoint;  // its folder
  int64_t update = 0;      // that it was saved after
  Run run;                 // hooks included; run.test is the data
};

// The folder that --checkpoint means: best, latest, a folder, or (empty) the best one if there is one. Throws
// CheckpointError if there is none.
std::string find_checkpoint(const RunConfig& config, const std::string& wanted);

// Model, hooks and `data` of the config. Weights are those that the model was made with.
Run build_evaluation(const RunConfig& config, const DataConfig& data, const std::string& output = "");

// The same with the weights of a checkpoint; hooks get what it holds of them, so that an average takes part.
Evaluation open_evaluation(const RunConfig& config, const DataConfig& data, const std::string& checkpoint,
                           const std::string& output = "");

}  // namespace duet
