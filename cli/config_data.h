#pragma once

#include <duet/cli/config.h>

#include <string>
#include <utility>
#include <vector>

namespace duet {

// The tree behind ConfigNode; shared by config.cpp, config_parse.cpp and config_dump.cpp only.
struct ConfigNode::Data {
  Kind kind = Kind::kAbsent;
  std::string text;     // kValue: the scalar as written, without quotes
  bool quoted = false;  // it was quoted, so it is a string whatever it looks like
  std::string origin;   // of the key for what a map holds
  std::string path;     // empty at the top
  // Map entries in order; list items under "0", "1", ... Absent entries are kept too: they collect the defaults read.
  std::vector<std::pair<std::string, std::shared_ptr<Data>>> items;
  std::vector<std::string> known;  // keys that were asked for
  std::string fallback;            // YAML text of the default that was used in place of this absent or null value
  bool check_later = false;

  std::shared_ptr<Data> get(const std::string& key) const {
    for (const auto& item : items) {
      if (item.first == key) return item.second;
    }
    return nullptr;
  }
};

// "a.b" from "a" and "b".
inline std::string join_path(const std::string& parent, const std::string& key) {
  return parent.empty() ? key : parent + "." + key;
}

// `text` as a YAML scalar that reads back as the same text.
std::string yaml_scalar(const std::string& text, bool quoted);

}  // namespace duet
