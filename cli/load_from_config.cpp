#include <duet/cli/load_from_config.h>

namespace duet {

std::optional<LoadFromConfig> read_load_from(const ConfigNode& root) {
  const ConfigNode node = root.child("load_from");
  if (!node.exists() || node.is_null()) return std::nullopt;
  LoadFromConfig config;
  if (node.kind() != ConfigNode::Kind::kMap) {
    config.source.path = root.need<std::string>("load_from");
  } else {
    config.source.path = node.need<std::string>("path");
    config.strict = node.read<bool>("strict", config.strict);
    config.source.which = node.read<std::string>("which", config.source.which);
    config.source.prefix = node.read<std::string>("prefix", config.source.prefix);
    if (const ConfigNode rules = node.child("revise_keys"); rules.exists() && !rules.is_null()) {
      config.source.revise_keys.emplace();
      for (const std::string& pattern : rules.keys()) {
        config.source.revise_keys->push_back({pattern, rules.need<std::string>(pattern)});
      }
    }
  }
  if (config.source.path.empty()) root.fail("load_from", "names no file, expected a checkpoint or a file of weights");
  return config;
}

void override_load_from(ConfigNode& root, const std::string& path) {
  std::string quoted = "'";
  for (size_t i = 0; i < path.size(); ++i) {
    if (path[i] == '\'') quoted += '\'';
    if (path.compare(i, 2, "${") == 0) quoted += '$';  // no environment variable
    quoted += path[i];
  }
  const bool is_map = root.child("load_from").kind() == ConfigNode::Kind::kMap;
  root.override_with((is_map ? "load_from.path=" : "load_from=") + quoted + "'", "--load-from");
}

}  // namespace duet
