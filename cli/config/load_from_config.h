#pragma once

#include <optional>
#include "checkpoint/weights_file.h"
#include "cli/config/config_options.h"

namespace duet {

// `load_from`: weights that a run starts from; its counters, optimizer and data start anew.
struct LoadFromConfig {
  WeightsSource source;
  bool strict = false;  // every tensor must be there, with its shape and type
  static const OptionFields& fields();
};

// Reads `load_from` of the config: a path, or a map {path, strict, which, prefix, revise_keys}, the last being a map of
// regular expressions and what each becomes: {'^backbone\.': ''}.
std::optional<LoadFromConfig> read_load_from(const ConfigNode& root);

// Sets it to `path`, for --load-from. Other keys of a map stay.
void override_load_from(ConfigNode& root, const std::string& path);

}  // namespace duet
