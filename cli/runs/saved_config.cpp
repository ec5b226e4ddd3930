#include <algorithm>
#include <sstream>
#include <c10/util/StringUtil.h>
#include "base/detail/text.h"
#include "base/error.h"
#include "cli/config/config_data.h"
#include "cli/runs/run_folder.h"
#include "io/file_io.h"

namespace duet {

namespace {

using Data = ConfigNode::Data;
using Kind = ConfigNode::Kind;

constexpr std::size_t kMostValues = 5000, kMostLines = 100'000;

// The comment behind each of the first lines.
std::vector<std::string> origins_of(const std::string& text) {
  std::vector<std::string> origins;
  std::istringstream lines(text);
  for (std::string line; origins.size() < kMostLines && std::getline(lines, line);) {
    const std::size_t comment = line.rfind("  # ");
    origins.push_back(comment == std::string::npos ? "" : line.substr(comment + 4));
  }
  return origins;
}

// A saved config has "$${" where a value holds "${".
std::string without_escapes(std::string text) {
  c10::ReplaceAll(text, "$${", "${");
  return text;
}

std::string flow_text(const Data& data) {
  if (data.kind == Kind::kValue) return without_escapes(data.text);
  if (data.kind == Kind::kMap) return "{}";
  if (data.kind != Kind::kList) return "null";
  std::string items;
  for (const auto& item : data.items) items += (items.empty() ? "" : ", ") + flow_text(*item.second);
  return "[" + items + "]";
}

// `origins`: of each line; a node knows its own as "config.yaml:LINE".
std::string origin_of(const Data& data, const std::vector<std::string>& origins) {
  const auto line = parse_number<std::size_t>(std::string_view(data.origin).substr(data.origin.rfind(':') + 1));
  return line && *line >= 1 && *line <= origins.size() ? origins[*line - 1] : "";
}

void add_values(const Data& data, const std::vector<std::string>& origins, SavedConfig& config) {
  const bool holds_maps =
      data.kind == Kind::kMap || std::any_of(data.items.begin(), data.items.end(),
                                             [](const auto& item) { return item.second->kind == Kind::kMap; });
  if (holds_maps && !data.items.empty()) {
    for (const auto& item : data.items) add_values(*item.second, origins, config);
    return;
  }
  if (data.path.empty()) return;
  require<ConfigError>(config.values.size() < kMostValues, "config.yaml is too large");
  config.values.emplace_back(data.path, SavedValue{flow_text(data), origin_of(data, origins)});
}

}  // namespace

std::string SavedConfig::text(const std::string& path) const {
  const auto found = std::ranges::find(values, path, &std::pair<std::string, SavedValue>::first);
  return found == values.end() ? "" : found->second.text;
}

SavedConfig read_saved_config(const std::string& path) {
  SavedConfig config;
  try {
    const std::string text = read_yaml_text(path);
    add_values(*parse_yaml(text, "config.yaml", References::kLeftAsTheyAre), origins_of(text), config);
  } catch (const file_io::IoError& error) {
    return {{}, error.what()};
  } catch (const ConfigError& error) {
    return {{}, error.what()};
  }
  return config;
}

}  // namespace duet
