#include "cli/config/load_from_config.h"

namespace duet {

namespace {

// With or without the dot that follows it in a name.
std::string read_prefix(const ConfigNode& node, const std::string& fallback) {
  std::string prefix = node.read<std::string>("prefix", fallback);
  if (prefix.size() > 1 && prefix.back() == '.') prefix.pop_back();
  return prefix;
}

}  // namespace

const OptionFields& LoadFromConfig::fields() {
  using O = LoadFromConfig;
  static const OptionFields kFields = OptionFields::of<O>("LoadFromConfig", [](const FieldAdder<O>& add) {
    const auto of = [](auto member) { return [member](O& o) -> auto& { return o.source.*member; }; };
    add("path", of(&WeightsSource::path), "a checkpoint or a file of weights").needed();
    add("strict", &O::strict, "every tensor must be there");
    add("which", of(&WeightsSource::which), "the model, or an average of it");
    add.key("prefix", "text", "only the names below this one, without it");
    add.key("revise_keys", "map", "regular expressions of names, and what each becomes");
  });
  return kFields;
}

std::optional<LoadFromConfig> read_load_from(const ConfigNode& root) {
  const ConfigNode node = root.child("load_from");
  LoadFromConfig config;
  if (node.kind() != ConfigNode::Kind::kMap) {
    const std::optional<std::string> path = root.find<std::string>("load_from");
    if (!path) return std::nullopt;
    config.source.path = *path;
  } else {
    config = read_options<LoadFromConfig>(node);
    config.source.prefix = read_prefix(node, config.source.prefix);
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
