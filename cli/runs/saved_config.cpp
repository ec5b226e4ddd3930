#include "cli/runs/saved_config.h"
#include <algorithm>
#include <set>
#include <sstream>
#include <c10/util/StringUtil.h>
#include <yaml-cpp/yaml.h>
#include "cli/config/bounded_yaml.h"
#include "io/file_io.h"

namespace duet {

namespace {

// Aliases make a small file a huge tree, or an endless one.
constexpr int kDeepest = 64;
constexpr std::size_t kMostValues = 5000, kMostPaths = std::size_t{16} << 20, kMostLines = 100'000;

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

class ValueCollector {
 public:
  explicit ValueCollector(std::vector<std::string> origins) : origins_(std::move(origins)) {}

  void add(const YAML::Node& node, const std::string& path, int depth = 0) {
    paths_ += path.size();
    if (depth > kDeepest || config.values.size() > kMostValues || paths_ > kMostPaths)
      throw YAML::Exception(node.Mark(), "it is too large");
    if (node.IsMap() && node.size() > 0) {
      for (const auto& entry : node) add(entry.second, joined(path, entry.first), depth + 1);
    } else if (node.IsSequence() && std::any_of(node.begin(), node.end(), [](const auto& n) { return n.IsMap(); })) {
      int64_t index = 0;
      for (const auto& item : node) add(item, c10::str(path, ".", index++), depth + 1);
    } else {
      const int line = node.Mark().line;
      const bool known = line >= 0 && static_cast<std::size_t>(line) < origins_.size();
      config.values.emplace_back(path, SavedValue{flow_text(node), known ? origins_[line] : ""});
    }
  }

  SavedConfig config;

 private:
  static std::string joined(const std::string& path, const YAML::Node& key) {
    const std::string name = key.IsScalar() ? key.Scalar() : "?";
    return path.empty() ? name : path + "." + name;
  }

  static std::string flow_text(const YAML::Node& node) {
    if (node.IsScalar()) return without_escapes(node.Scalar());
    if (node.IsMap()) return "{}";
    if (!node.IsSequence()) return "null";
    std::string items;
    for (const auto& item : node) items += (items.empty() ? "" : ", ") + flow_text(item);
    return "[" + items + "]";
  }

  // A saved config has "$${" where a value holds "${".
  static std::string without_escapes(std::string text) {
    for (std::size_t at = 0; (at = text.find("$${", at)) != std::string::npos; ++at) text.erase(at, 1);
    return text;
  }

  std::vector<std::string> origins_;
  std::size_t paths_ = 0;  // bytes: a long key stands in the paths of all that it holds
};

const SavedValue* value_at(const SavedConfig& config, const std::string& path) {
  const auto found =
      std::find_if(config.values.begin(), config.values.end(), [&](const auto& value) { return value.first == path; });
  return found == config.values.end() ? nullptr : &found->second;
}

}  // namespace

std::string SavedConfig::text(const std::string& path) const {
  const SavedValue* const value = value_at(*this, path);
  return value == nullptr ? "" : value->text;
}

SavedConfig read_saved_config(const std::string& path) {
  SavedConfig config;
  try {
    const std::string text = read_yaml_text(path);
    const YAML::Node root = load_yaml(text);
    ValueCollector collector(origins_of(text));
    if (root.IsMap()) collector.add(root, "");
    config = std::move(collector.config);
    if (config.values.empty()) config.problem = "config.yaml holds no keys";
  } catch (const file_io::IoError& error) {
    config.problem = error.what();
  } catch (const YamlTooLarge& error) {
    config.problem = c10::str("config.yaml:", error.mark.line + 1, " ", error.what);
  } catch (const YAML::Exception& error) {
    config.problem = c10::str("config.yaml:", error.mark.line + 1, " is not readable: ", error.msg);
  }
  return config;
}

std::vector<ConfigDifference> config_differences(const std::vector<const SavedConfig*>& configs) {
  std::vector<ConfigDifference> differences;
  std::set<std::string> seen;
  for (const SavedConfig* config : configs) {
    for (const auto& [path, ignored] : config->values) {
      if (!seen.insert(path).second) continue;
      ConfigDifference difference{path, {}};
      for (const SavedConfig* other : configs) difference.values.push_back(value_at(*other, path));
      const SavedValue* first = difference.values.front();
      const bool same = std::all_of(difference.values.begin(), difference.values.end(), [&](const SavedValue* value) {
        return value != nullptr && first != nullptr && value->text == first->text;
      });
      if (!same) differences.push_back(std::move(difference));
    }
  }
  return differences;
}

}  // namespace duet
