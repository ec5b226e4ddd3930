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

}  // namespace duet
