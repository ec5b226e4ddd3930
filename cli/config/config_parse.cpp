#include <sstream>
#include <vector>
#include <c10/util/StringUtil.h>
#include <yaml-cpp/yaml.h>
#include "base/detail/text.h"
#include "base/error.h"
#include "cli/config/bounded_yaml.h"
#include "cli/config/config_data.h"

namespace duet {

namespace {

using Data = ConfigNode::Data;
using Kind = ConfigNode::Kind;

constexpr std::size_t kMaxPaths = std::size_t{16} << 20;  // each node holds its path: a long key stands in many

class TreeBuilder {
 public:
  // Every node gets the origin "source:line", or just "source" if `lines` is false.
  TreeBuilder(std::string source, bool lines, References references = References::kFilledIn)
      : source_(std::move(source)), lines_(lines), references_(references) {}

  std::string at(const YAML::Mark& mark) const {
    return lines_ && mark.line >= 0 ? c10::str(source_, ":", mark.line + 1) : source_;
  }

  std::shared_ptr<Data> build(const YAML::Node& node, const std::string& path, const std::string& origin, int depth) {
    paths_ += path.size();
    if (paths_ > kMaxPaths) {
      throw ConfigError(c10::str("[Config] ", origin, ": ", one_line(path), " has too many values below long keys, ",
                                 "expected at most ", kMaxPaths, " bytes of their paths; shorten the keys"));
    }
    auto data = std::make_shared<Data>();
    data->origin = origin;
    data->path = path;
    check_tag(node, *data);
    switch (node.Type()) {
      case YAML::NodeType::Undefined:
      case YAML::NodeType::Null: data->kind = Kind::kNull; break;
      case YAML::NodeType::Scalar:
        data->kind = Kind::kValue;
        data->text = node.Scalar();
        data->quoted = node.Tag() == "!" || node.Tag() == "tag:yaml.org,2002:str";
        if (references_ == References::kFilledIn) expand_environment(*data);
        break;
      case YAML::NodeType::Sequence: add_items(node, *data, depth); break;
      case YAML::NodeType::Map: add_entries(node, *data, depth); break;
    }
    return data;
  }

 private:
  void add_items(const YAML::Node& node, Data& data, int depth) {
    data.kind = Kind::kList;
    for (const YAML::Node& item : node) {
      const std::string index = std::to_string(data.items.size());
      data.items.emplace_back(index, build(item, join_path(data.path, index), at(item.Mark()), depth + 1));
    }
  }

  void add_entries(const YAML::Node& node, Data& data, int depth) {
    data.kind = Kind::kMap;
    for (const auto& entry : node) {
      const std::string origin = at(entry.first.Mark());
      if (!entry.first.IsScalar()) {
        throw ConfigError(c10::str(
            "[Config] ", origin, ": found a key that is no plain word", data.path.empty() ? "" : " in " + data.path,
            ", expected 'key: value'",
            entry.first.IsMap() ? "; {{...}} is not filled in: write ${env:NAME}, or inherit with _base_" : ""));
      }
      const std::string key = entry.first.Scalar();
      const std::string path = join_path(data.path, key);
      if (key == "_base_" && depth > 0) {
        throw ConfigError(c10::str("[Config] ", origin, ": found ", path,
                                   ", expected _base_ at the top of a file only; put ",
                                   "this map into a file of its own with its base"));
      }
      if (key == "<<") {
        throw ConfigError(c10::str("[Config] ", origin, ": found the merge key ", path,
                                   ", which YAML 1.2 dropped; "
                                   "write the merged keys out"));
      }
      if (const auto first = data.get(key)) {
        throw ConfigError(c10::str("[Config] ", origin, ": ", path, " is given twice, first at ", first->origin,
                                   "; delete one of them"));
      }
      data.items.emplace_back(key, build(entry.second, path, origin, depth + 1));
    }
    take_delete(data, depth);
  }

  // It says how the map is merged, and is no key of it.
  static void take_delete(Data& data, int depth) {
    const std::shared_ptr<Data> found = data.get("_delete_");
    if (!found) return;
    if (depth == 0) {
      fail_at(*found, "stands at the top of a file, expected in a map below; remove _base_ to take nothing from it");
    }
    data.replaces = yes_or_no(*found);
    std::erase_if(data.items, [](const auto& item) { return item.first == "_delete_"; });
  }

  // A tag asks for a type of its own, which nothing here would honour.
  static void check_tag(const YAML::Node& node, const Data& data) {
    static const std::string kYaml = "tag:yaml.org,2002:";
    std::string tag = node.Tag();
    if (tag.empty() || tag == "?" || tag == "!") return;
    if (tag.rfind(kYaml, 0) == 0) {
      tag = tag.substr(kYaml.size());
      for (const char* plain : {"str", "int", "float", "bool", "null", "seq", "map"}) {
        if (tag == plain) return;
      }
    }
    throw ConfigError(c10::str("[Config] ", data.origin, ": ", data.path, " has the tag '", tag,
                               "', expected plain values, lists and maps; remove the tag"));
  }

  std::string source_;
  bool lines_;
  References references_;
  std::size_t paths_ = 0;
};

// yaml-cpp takes a NUL for the end of the file and drops the rest.
void refuse_control_characters(const std::string& text, const std::string& source) {
  int line = 1, column = 0;
  for (const char c : text) {
    ++column;
    if (c == '\n') {
      ++line;
      column = 0;
    } else if (static_cast<unsigned char>(c) < 0x20 && c != '\t' && c != '\r') {
      throw ConfigError(c10::str("[Config] ", source, ":", line, ":", column, ": found the control character ",
                                 static_cast<int>(c), ", expected text; is this a YAML file?"));
    }
  }
}

// The one document of `text`. Not LoadAll(): on some texts that are no YAML it finds documents without end.
YAML::Node load(const std::string& text, const TreeBuilder& place) {
  std::vector<YAML::Mark> documents;
  try {
    documents = inspect_yaml(text);
  } catch (const YamlTooLarge& error) {
    throw ConfigError(
        c10::str("[Config] ", place.at(error.mark), ": the config ", error.what, "; write the values out"));
  }
  if (documents.size() > 1) {
    throw ConfigError(c10::str("[Config] ", place.at(documents[1]),
                               ": found at least 2 YAML documents, expected one; remove the ",
                               "'---' lines between them, or a comma at the start of a line"));
  }
  return YAML::Load(text);
}

}  // namespace

std::shared_ptr<Data> parse_yaml(const std::string& text, const std::string& source, References references) {
  refuse_control_characters(text, source);
  const TreeBuilder place(source, true);
  YAML::Node document;
  try {
    // Without an end mark an open quote would swallow the rest of the file and pass.
    document = load(text + (text.empty() || text.back() == '\n' ? "...\n" : "\n...\n"), place);
  } catch (const YAML::Exception& error) {
    const std::string column = error.mark.line >= 0 ? c10::str(":", error.mark.column + 1) : "";
    throw ConfigError(c10::str("[Config] ", place.at(error.mark), column, ": this is not YAML: ", error.msg,
                               "; check indentation, brackets and quotes up to there"));
  }
  if (!document.IsMap()) {
    throw ConfigError(c10::str("[Config] ", source, ":1: the config is ", document.IsNull() ? "empty" : "no map",
                               ", expected lines of 'key: value' such as 'work_dir: runs/a'"));
  }
  return TreeBuilder(source, true, references).build(document, "", c10::str(source, ":1"), 0);
}

std::shared_ptr<Data> parse_yaml_value(const std::string& text, const std::string& path, const std::string& origin) {
  YAML::Node value;
  try {
    value = load(text, TreeBuilder(origin, false));
  } catch (const YAML::Exception& error) {
    throw ConfigError(c10::str("[Config] ", origin, ": the value of '", path, "=", text, "' is not YAML: ", error.msg,
                               "; quote it, as in 'key=\"a: b\"'"));
  }
  return TreeBuilder(origin, false).build(value, path, origin, 1);
}

}  // namespace duet
