#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>
#include "../base/state_dict.h"

namespace duet {

// A change of names: what matches the regular expression becomes the replacement, in which \1 is the first group.
struct NameRule {
  std::string pattern, replacement;
};

// Where weights come from, and what their names become.
struct WeightsSource {
  // A checkpoint step-N, a folder of them or a work_dir (the newest good one), a safetensors file, or a file of
  // torch.save: a state_dict, or a dictionary that holds one as "state_dict", "model", "model_state_dict" or "module".
  // Any file of a sharded model ("model-00001-of-00002.safetensors") stands for all.
  std::string path;
  // "model"; in a checkpoint the name of a hook that keeps an average ("ema"); in a file of torch.save a key at its
  // top. mmengine puts its average where the weights are, so "ema" means these in its checkpoints.
  std::string which = "model";
  // Only the names below this one, without it ("backbone"); empty: all.
  std::string prefix{};
  // Applied in order, as mmengine's revise_keys. Nothing: "module." and "_orig_mod.",
  // which DistributedDataParallel and torch.compile put in front of every name, come off if every name has them.
  std::optional<std::vector<NameRule>> revise_keys{};
};

// Parameters and buffers by the names of the module, on the CPU. Throws CheckpointError naming the file and the way
// out, ConfigError for a regular expression that is none.
StateDict read_weights(const WeightsSource& source);

// Of tensors with several names (tied weights: all of the same memory): every further name, and the first in
// alphabetical order.
std::map<std::string, std::string> aliases_of(const StateDict& weights);

// Writes what Python reads, under a temporary name that is then renamed: "*.safetensors", in which a tied tensor has
// its first name and the metadata the others; or for torch.load "*.pt", "*.pth" or "*.bin", under all of its names.
// Throws ConfigError for another ending, CheckpointError if writing fails; `path` is then as it was.
void write_weights(const std::string& path, const StateDict& weights);

// XXH3-128 over names and bytes, in the order of the names; 32 hex digits. Two runs ended alike if theirs are equal.
std::string weights_hash(const StateDict& weights);

}  // namespace duet
