#pragma once

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>
#include "cli/config/config.h"

namespace duet {

// The tree behind ConfigNode; shared by the sources config*.cpp only.
struct ConfigNode::Data {
  Kind kind = Kind::kAbsent;
  std::string text;  // kValue: the scalar without quotes, environment variables filled in
  // What is written in its place: the text with the names of environment variables, whose values may be secrets. Empty
  // without any, and once an option has taken a number from it: that is none.
  std::string written;
  bool quoted = false;  // it was quoted, so it is a string whatever it looks like
  std::string origin;   // of the key for what a map holds
  std::string path;     // empty at the top
  // Map entries in order; list items under "0", "1", ... Absent entries are kept too: they collect the defaults read.
  std::vector<std::pair<std::string, std::shared_ptr<Data>>> items;
  std::vector<std::string> known;  // keys that were asked for
  OptionValue fallback;            // the default that was used in place of this absent or null value
  bool check_later = false;
  bool replaces = false;  // a map with _delete_: true: it takes the place of the base's

  std::shared_ptr<Data> get(const std::string& name) const {
    for (const auto& item : items) {
      if (item.first == name) return item.second;
    }
    return nullptr;
  }
  bool knows(const std::string& name) const { return std::find(known.begin(), known.end(), name) != known.end(); }
  bool is_unset() const { return kind == Kind::kAbsent || kind == Kind::kNull; }
};

// "a.b" from "a" and "b".
inline std::string join_path(const std::string& parent, const std::string& key) {
  return parent.empty() ? key : parent + "." + key;
}

// What an error shows of a value: "missing", "null", "3" for a number or true, "'three'" for text (and for a number in
// quotes, which is text), "a list of 2", "a map".
std::string describe(const ConfigNode::Data& data);
// Throws ConfigError "[Config] <origin>: <path> <message>".
[[noreturn]] void fail_at(const ConfigNode::Data& data, const std::string& message);

// YAML that reads back as the same value.
std::string yaml_text(const OptionValue& value);

// Whether the plain scalar `text` is YAML's null.
bool is_null_word(const std::string& text);
// True or false, or throws.
bool yes_or_no(const ConfigNode::Data& data);

// Fills environment variables into a value; notes in its origin which, and keeps their names for what is written.
void expand_environment(ConfigNode::Data& data);

// All of a file; IoError if it has more than 1 MiB, cannot be read, or is a pipe or device.
std::string read_yaml_text(const std::string& path);

// The tree of a whole text; `source` is the file's path. Bases are not looked at: `_base_` is an entry like
// any other. Throws ConfigError for what would take much memory or has no end.
enum class References { kFilledIn, kLeftAsTheyAre };  // ${...} in values
std::shared_ptr<ConfigNode::Data> parse_yaml(const std::string& text, const std::string& source,
                                             References references = References::kFilledIn);
// The tree of one value, at `path`; every node of it comes from `origin`.
std::shared_ptr<ConfigNode::Data> parse_yaml_value(const std::string& text, const std::string& path,
                                                   const std::string& origin);

}  // namespace duet
