#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>
#include "base/state_dict.h"
#include "cli/build.h"
#include "cli/config/run_config.h"

namespace duet {

// What the checkpoints of a run say of it (RunIdentity), and what a resume makes of that.

// The values of a config by path, as override_with() takes both: {"model.dropout", "0.1"}.
using FlatConfig = std::map<std::string, std::string>;
FlatConfig flat_config(const ConfigNode& root, Variables variables = Variables::kNamed);

// A value that is not the same in two configs. Empty: one has none.
struct ValueDifference {
  std::string path, first, second;
};
std::vector<ValueDifference> differences(const FlatConfig& first, const FlatConfig& second);

// Whether a value says how fast data is read, which each machine may do in its own way.
bool is_of_machine(const std::string& path);

// Which start of a launcher this is; empty without one.
std::string launch_name(const Launch& launch);

// Kind, size and a few samples of the data that a run trains on; empty for a stream.
std::string data_fingerprint(const RunConfig& config, const Run& run);

// What the classes of that data are called, by number; none if they have no names, or one that is no text.
std::vector<std::string> class_names_of(const Run& run);

// What a checkpoint says of the data of its run (fingerprint, classes and encoding), which rank 0 alone has read, for
// all.
RunIdentity data_everywhere(Communicator& ranks, const RunIdentity& run);

// A value of the config that is another one than in the run that saved a checkpoint. Empty texts: there is none.
struct ResumeDifference {
  std::string path, saved, now;
  bool checkpoint_wins = false;
};

// Names of the numbers of an optimizer that its state holds: lr, beta1, ...
using OptimizerNumbers = std::set<std::string>;
OptimizerNumbers numbers_in(const StateDict& state);

// In what this run's config differs from the saved one, but for what says where and how long it runs. `held`: numbers
// that were taken from the checkpoint.
std::vector<ResumeDifference> resume_differences(const FlatConfig& saved, const FlatConfig& now,
                                                 const OptimizerNumbers& held);

// In lines: what differs, and which holds.
std::string differences_text(const std::vector<ResumeDifference>& differences, const std::string& checkpoint);

// Puts what the checkpoint decides into the config, so that it says what is used.
void adopt_saved_values(const std::vector<ResumeDifference>& differences, const std::string& checkpoint,
                        ConfigNode& root);

}  // namespace duet
