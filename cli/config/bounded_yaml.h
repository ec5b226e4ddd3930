#pragma once

#include <string>
#include <vector>
#include <yaml-cpp/yaml.h>

namespace duet {

// Why a YAML text is not loaded, and where.
struct YamlTooLarge {
  YAML::Mark mark;
  std::string what;  // "is nested too deeply or ...", without the way out
};

// All of a file; IoError if it has more than 16 MiB, cannot be read, or is a pipe or device.
std::string read_yaml_text(const std::string& path);

// Looks at a text before memory is taken for it, aliases followed: throws YamlTooLarge if it is more than 16 MiB, 64
// levels deep, 100 000 values or 16 MiB of texts, or if a value is part of itself; YAML::Exception if it is no YAML.
// Returns where its documents begin, at most two of them.
std::vector<YAML::Mark> inspect_yaml(const std::string& text);

}  // namespace duet
