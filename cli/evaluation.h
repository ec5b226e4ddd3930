#pragma once

#include <optional>
#include <string>
#include "base/state_dict.h"
#include "cli/build.h"

namespace duet {

// A model with the weights of a checkpoint and the data to run it on, for `duet eval` and `duet predict`.
struct Evaluation {
  std::string checkpoint;       // its folder, or a file of weights
  std::optional<int64_t> step;  // that it was saved after; nothing for a file of weights
  Run run;                      // hooks included; run.test is the data
};

// What --checkpoint means: best, latest, a file of weights, a folder (see CheckpointStore::find), or (empty) the best
// one if there is one. Throws CheckpointError if there is none.
std::string find_checkpoint(const RunConfig& config, const std::string& wanted);

// Model, hooks and `data` of the config. Weights are those that the model was made with.
Run build_evaluation(const RunConfig& config, const DataConfig& data, const std::string& output = "");

// The same with the weights of a checkpoint; hooks get what it holds of them, so that an average takes part. Throws
// CheckpointError for a file of weights that does not hold exactly those of the model.
Evaluation open_evaluation(const RunConfig& config, const DataConfig& data, const std::string& checkpoint,
                           const std::string& output = "");

// Adds a hook that writes predictions into `folder`, unless the config has one.
void add_prediction_writer(const std::string& folder, BaseTrainer& trainer);

}  // namespace duet
