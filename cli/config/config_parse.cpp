#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>
#include <c10/util/StringUtil.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>
#include "base/detail/pattern.h"
#include "base/detail/text.h"
#include "base/error.h"
#include "cli/config/config_data.h"
#include "io/file_io.h"

namespace duet {

// The tree of a text, with environment variables filled in.

using Data = ConfigNode::Data;
using Kind = ConfigNode::Kind;

namespace {

constexpr std::string_view kOpen = "${";

std::string trimmed(const std::string& text) {
  const std::size_t begin = text.find_first_not_of(" \t\r\n");
  return begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1);
}

// The text with its references filled in.
struct Filled {
  std::string text;
  std::string environment;  // ", env A, env B unset"
  bool is_whole = false;    // it was one reference and nothing else
  bool has_value = false;   // of a variable that is set
  bool is_text = false;     // a default in quotes, whatever it looks like
};

// Adds what `reference`, "${env:NAME}" or "${env:NAME,default}", stands for.
void look_up(const Data& data, const std::string& reference, Filled& filled) {
  static const Pattern kReference(R"(\$\{(?:oc\.)?env:([A-Za-z_][A-Za-z0-9_]*)(,[^{}]*)?\})");
  const auto parts = kReference.groups_of(reference);
  if (!parts) {
    fail_at(data, c10::str("has '", reference,
                           "', expected ${env:NAME} or ${env:NAME,default}, which are all that is filled in; write $${ "
                           "for the characters ${"));
  }
  const std::string &name = (*parts)[1], &fallback = (*parts)[2];
  const char* const value = std::getenv(name.c_str());
  if (value == nullptr && fallback.empty()) {
    fail_at(data, c10::str("asks for the environment variable ", name,
                           ", which is not set; set it, or give a default as in ${env:", name, ",value}"));
  }
  std::string standing = value != nullptr ? value : trimmed(fallback.substr(1));
  const bool in_quotes = standing.size() > 1 && (standing.front() == '\'' || standing.front() == '"');
  filled.is_text = value == nullptr && in_quotes && standing.back() == standing.front();
  filled.text += filled.is_text ? standing.substr(1, standing.size() - 2) : standing;
  filled.environment += ", env " + name + (value != nullptr ? "" : " unset");
  filled.has_value = filled.has_value || value != nullptr;
}

// What a variable holds is not looked into.
Filled filled_in(const Data& data) {
  const std::string& text = data.text;
  Filled filled;
  for (std::size_t at = 0; at < text.size();) {
    if (text.compare(at, 3, "$${") == 0) {
      filled.text += kOpen;
      at += 3;
    } else if (text.compare(at, 2, kOpen) == 0) {
      const std::size_t end = std::min(text.find('}', at), text.size() - 1);
      const std::string reference = text.substr(at, end + 1 - at);
      look_up(data, reference, filled);
      filled.is_whole = reference.size() == text.size();
      at += reference.size();
    } else {
      filled.text += text[at++];
    }
  }
  return filled;
}

// What is no secret: true, false, null. A rerun of the saved config has them without the environment.
bool is_plain_word(const std::string& text) {
  static constexpr std::string_view kWords[] = {"true", "True", "false", "False", "on", "off", "yes", "no"};
  return is_null_word(text) || std::find(std::begin(kWords), std::end(kWords), text) != std::end(kWords);
}

}  // namespace

bool is_null_word(const std::string& text) { return text == "null" || text == "Null" || text == "NULL" || text == "~"; }

void expand_environment(Data& data) {
  if (data.kind != Kind::kValue) return;
  // {{ fileDirname }}, {{_base_.key}} and {{$NAME:default}} would be taken literally.
  static const Pattern kVariable(R"(\{\{\s*(file|_base_\.|\$[A-Za-z_]))");
  for (std::size_t at = data.text.find("{{"); at != std::string::npos; at = data.text.find("{{", at + 1)) {
    if (kVariable.prefix_of(data.text.substr(at, 100)).empty()) continue;
    fail_at(data, "has '" + data.text +
                      "', of which mmengine's {{...}} is not filled in, expected a value; write ${env:NAME,default}, "
                      "and inherit a base's values with _base_: FILE");
  }
  if (data.text.find(kOpen) == std::string::npos) return;
  const Filled filled = filled_in(data);
  data.origin += filled.environment;
  data.quoted = !filled.is_whole || filled.is_text;
  const std::string written = std::exchange(data.text, data.quoted ? filled.text : trimmed(filled.text));
  // Quotes are no matter then: between braces and brackets YAML itself asks for them.
  data.quoted = data.quoted || data.text.empty();
  if (filled.has_value && (data.quoted || !is_plain_word(data.text))) data.written = written;
  if (data.quoted || !is_null_word(data.text)) return;
  data.kind = Kind::kNull;
  data.text.clear();
}

namespace {

constexpr std::size_t kMaxText = std::size_t{1} << 20;   // yaml-cpp takes 240 bytes for each of many open brackets
constexpr std::size_t kMaxTree = std::size_t{16} << 20;  // bytes of texts and paths: a long key stands in many paths
constexpr std::size_t kMaxDepth = 64, kMaxValues = 100'000;

// Where the nodes of a text come from: "source:line", or just "source" if `lines` is false.
struct Source {
  std::string name;
  bool lines = true;

  std::string at(const YAML::Mark& mark) const {
    return lines && mark.line >= 0 ? c10::str(name, ":", mark.line + 1) : name;
  }
};

[[noreturn]] void refuse(const std::string& place, const std::string& message) {
  throw ConfigError("[Config] " + place + ": " + message);
}

[[noreturn]] void refuse_size(const std::string& place) {
  refuse(place, c10::str("the config is too large, nested too deeply or refers to itself, expected at most ", kMaxDepth,
                         " levels, ", kMaxValues, " values, ", kMaxText, " bytes of text and ", kMaxTree,
                         " of texts and paths with aliases followed; make it smaller"));
}

// Looks at a text before memory is taken for it, and finds where its documents begin: YAML::LoadAll() finds documents
// without end on some texts that are no YAML.
class YamlInspector : public YAML::EventHandler {
 public:
  explicit YamlInspector(const Source& source) : source_(source) {}
  std::vector<YAML::Mark> documents;

  void OnDocumentStart(const YAML::Mark& mark) override { documents.push_back(mark); }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t) override { count(mark); }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override { count(mark); }
  void OnScalar(const YAML::Mark& mark, const std::string&, YAML::anchor_t, const std::string&) override {
    count(mark);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {
    open(mark);
  }
  void OnSequenceEnd() override { --depth_; }
  void OnMapStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {
    open(mark);
  }
  void OnMapEnd() override { --depth_; }

 private:
  void count(const YAML::Mark& mark) {
    if (++values_ > kMaxValues) refuse_size(source_.at(mark));
  }
  void open(const YAML::Mark& mark) {
    count(mark);
    if (++depth_ > kMaxDepth) refuse_size(source_.at(mark));
  }

  const Source& source_;
  std::size_t values_ = 0, depth_ = 0;
};

class TreeBuilder {
 public:
  TreeBuilder(const Source& source, References references) : source_(source), references_(references) {}

  std::shared_ptr<Data> build(const YAML::Node& node, const std::string& path, const std::string& origin,
                              std::size_t depth) {
    // Aliases make a small text a huge tree, or an endless one.
    bytes_ += path.size() + (node.IsScalar() ? node.Scalar().size() : 0);
    if (++values_ > kMaxValues || bytes_ > kMaxTree || depth > kMaxDepth) refuse_size(origin);
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
  void add_items(const YAML::Node& node, Data& data, std::size_t depth) {
    data.kind = Kind::kList;
    for (const YAML::Node& item : node) {
      const std::string index = std::to_string(data.items.size());
      data.items.emplace_back(index, build(item, join_path(data.path, index), source_.at(item.Mark()), depth + 1));
    }
  }

  void add_entries(const YAML::Node& node, Data& data, std::size_t depth) {
    data.kind = Kind::kMap;
    for (const auto& entry : node) {
      const std::string origin = source_.at(entry.first.Mark());
      if (!entry.first.IsScalar()) {
        refuse(origin,
               "found a key that is no plain word" + (data.path.empty() ? "" : " in " + data.path) +
                   ", expected 'key: value'; {{...}} is not filled in: write ${env:NAME}, or inherit with _base_");
      }
      const std::string key = entry.first.Scalar(), path = join_path(data.path, key);
      if (key == "_base_" && depth > 0)
        refuse(origin,
               "found " + path + ", expected _base_ at the top of a file only; put this map into a file of its own");
      if (key == "<<")
        refuse(origin, "found the merge key " + path + ", which YAML 1.2 dropped; write the merged keys out");
      if (const auto first = data.get(key))
        refuse(origin, path + " is given twice, first at " + first->origin + "; delete one of them");
      data.items.emplace_back(key, build(entry.second, path, origin, depth + 1));
    }
    take_delete(data, depth);
  }

  // It says how the map is merged, and is no key of it.
  static void take_delete(Data& data, std::size_t depth) {
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
    static const Pattern kPlain("[?!]?|tag:yaml\\.org,2002:(str|int|float|bool|null|seq|map)");
    if (kPlain.matches(node.Tag())) return;
    fail_at(data, "has the tag '" + node.Tag() + "', expected plain values, lists and maps; remove the tag");
  }

  const Source& source_;
  References references_;
  std::size_t values_ = 0, bytes_ = 0;
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
      refuse(c10::str(source, ":", line, ":", column),
             c10::str("found the control character ", static_cast<int>(c), ", expected text; is this a YAML file?"));
    }
  }
}

// The one document of `text`.
YAML::Node load(const std::string& text, const Source& source) {
  if (text.size() > kMaxText) refuse_size(source.at(YAML::Mark()));
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  YamlInspector inspector(source);
  while (inspector.documents.size() < 2 && parser.HandleNextDocument(inspector)) {
  }
  if (inspector.documents.size() > 1) {
    refuse(source.at(inspector.documents[1]),
           "found at least 2 YAML documents, expected one; remove the '---' lines "
           "between them, or a comma at the start of a line");
  }
  return YAML::Load(text);
}

}  // namespace

std::string read_yaml_text(const std::string& path) { return file_io::read_text(path, kMaxText); }

std::shared_ptr<Data> parse_yaml(const std::string& text, const std::string& name, References references) {
  refuse_control_characters(text, name);
  const Source source{name};
  YAML::Node document;
  try {
    // Without an end mark an open quote would swallow the rest of the file and pass.
    document = load(text + (text.empty() || text.back() == '\n' ? "...\n" : "\n...\n"), source);
  } catch (const YAML::Exception& error) {
    const std::string column = error.mark.line >= 0 ? c10::str(":", error.mark.column + 1) : "";
    refuse(source.at(error.mark) + column,
           "this is not YAML: " + error.msg + "; check indentation, brackets and quotes up to there");
  }
  if (!document.IsMap()) {
    refuse(name + ":1", std::string("the config is ") + (document.IsNull() ? "empty" : "no map") +
                            ", expected lines of 'key: value' such as 'work_dir: runs/a'");
  }
  return TreeBuilder(source, references).build(document, "", name + ":1", 0);
}

std::shared_ptr<Data> parse_yaml_value(const std::string& text, const std::string& path, const std::string& origin) {
  const Source source{origin, /*lines=*/false};
  YAML::Node value;
  try {
    value = load(text, source);
  } catch (const YAML::Exception& error) {
    refuse(origin,
           "the value of '" + path + "=" + text + "' is not YAML: " + error.msg + "; quote it, as in 'key=\"a: b\"'");
  }
  const bool is_plain = value.IsScalar() && value.Tag() == "?";
  if (is_plain && value.Scalar() != trimmed(text)) {
    refuse(origin,
           "the value of '" + path + "=" + text + "' is read as '" + value.Scalar() +
               "', since YAML folds lines and takes what follows ' #' for a comment; quote it, as in 'key=\"a #b\"'");
  }
  return TreeBuilder(source, References::kFilledIn).build(value, path, origin, 1);
}

}  // namespace duet
