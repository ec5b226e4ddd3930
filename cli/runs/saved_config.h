#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace duet {

// The config.yaml that a run has saved: every value with where it came from.

struct SavedValue {
  std::string text;
  std::string origin;  // "examples/a.yaml:12", "command line", "default"; empty: unknown
};

struct SavedConfig {
  std::vector<std::pair<std::string, SavedValue>> values;  // by dotted path, in the order of the file
  std::string problem;                                     // why there are none

  // The value's text; empty if there is none.
  std::string text(const std::string& path) const;
};

// Never throws: what cannot be read is the config's `problem`.
SavedConfig read_saved_config(const std::string& path);

// A key whose values differ between configs; one value per config, null where it is not set.
struct ConfigDifference {
  std::string path;
  std::vector<const SavedValue*> values;
};

// In the order of the first config that has them. The values belong to `configs`.
std::vector<ConfigDifference> config_differences(const std::vector<const SavedConfig*>& configs);

}  // namespace duet
