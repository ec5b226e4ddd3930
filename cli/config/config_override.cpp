#include <algorithm>
#include <c10/util/StringUtil.h>
#include "base/detail/text.h"
#include "base/error.h"
#include "cli/config/config_data.h"

namespace duet {

namespace {

using Data = ConfigNode::Data;
using Kind = ConfigNode::Kind;

[[noreturn]] void refuse(const std::string& origin, const std::string& assignment) {
  throw ConfigError(c10::str("[Config] ", origin, ": found '", assignment,
                             "', expected key=value, such as optim_wrapper.optimizer.lr=0.01, or ~key to delete one"));
}

// "a.'b.c'.d" as a, b.c, d; empty if a word is empty or a quote stays open.
std::vector<std::string> split_path(const std::string& path) {
  std::vector<std::string> words(1);
  char quote = 0;
  for (const char c : path) {
    if (quote != 0 ? c == quote : c == '\'' || c == '"') {
      quote = quote != 0 ? '\0' : c;
    } else if (c == '.' && quote == 0) {
      words.emplace_back();
    } else {
      words.back() += c;
    }
  }
  const bool empty_word = std::any_of(words.begin(), words.end(), [](const std::string& word) { return word.empty(); });
  return empty_word || quote != 0 ? std::vector<std::string>{} : words;
}

// The entry `key` of `data`, made if it can be.
std::shared_ptr<Data>& entry_of(Data& data, const std::string& key, const std::string& origin) {
  if (data.is_unset()) data.kind = Kind::kMap;
  for (auto& item : data.items) {
    if (item.first == key) return item.second;
  }
  if (data.kind == Kind::kValue) {
    throw ConfigError(c10::str("[Config] ", origin, ": ", data.path, " is the value ", describe(data),
                               ", expected a map to set '", key, "' in; override ", data.path, " itself"));
  }
  if (data.kind == Kind::kList && key != std::to_string(data.items.size())) {
    throw ConfigError(c10::str("[Config] ", origin, ": ", data.path, " has ", data.items.size(),
                               " items, found index '", key, "', expected 0 to ", data.items.size(),
                               " (one past the end appends)"));
  }
  auto made = std::make_shared<Data>();
  made->origin = origin;
  made->path = join_path(data.path, key);
  return data.items.emplace_back(key, made).second;
}

void set_path(Data& data, const std::string& path) {
  data.path = path;
  for (auto& [key, item] : data.items) set_path(*item, join_path(path, key));
}

void erase(Data& parent, const std::string& key, const std::string& origin) {
  const auto found =
      std::find_if(parent.items.begin(), parent.items.end(), [&](const auto& item) { return item.first == key; });
  if (found == parent.items.end()) {
    std::vector<std::string> names;
    for (const auto& item : parent.items) names.push_back(item.first);
    throw ConfigError(c10::str("[Config] ", origin, ": there is no ", join_path(parent.path, key), " to delete; ",
                               known_and_nearest(key, names)));
  }
  parent.items.erase(found);
  if (parent.kind != Kind::kList) return;
  for (std::size_t i = 0; i < parent.items.size(); ++i) {
    parent.items[i].first = std::to_string(i);
    set_path(*parent.items[i].second, join_path(parent.path, parent.items[i].first));
  }
}

void delete_path(Data& root, const std::string& assignment, const std::string& origin) {
  const std::vector<std::string> words = split_path(assignment.substr(1));
  if (words.empty()) refuse(origin, assignment);
  Data* parent = &root;
  for (std::size_t i = 0; i + 1 < words.size(); ++i) {
    const std::shared_ptr<Data> next = parent->get(words[i]);
    if (!next) erase(*parent, words[i], origin);  // says what there is
    parent = next.get();
  }
  erase(*parent, words.back(), origin);
}

}  // namespace

void ConfigNode::override_with(const std::string& assignment, const std::string& origin) {
  if (!assignment.empty() && assignment[0] == '~') return delete_path(*data_, assignment, origin);
  const std::size_t equals = assignment.find('=');
  const std::vector<std::string> words = split_path(assignment.substr(0, equals));
  if (equals == std::string::npos || words.empty()) refuse(origin, assignment);
  if (words[0] == "_base_") {
    throw ConfigError(c10::str("[Config] ", origin, ": found '", assignment,
                               "', expected _base_ in a file only; write a file that "
                               "names both"));
  }
  std::shared_ptr<Data> parent = data_;
  for (std::size_t i = 0; i + 1 < words.size(); ++i) parent = entry_of(*parent, words[i], origin);
  const std::shared_ptr<Data> value =
      parse_yaml_value(assignment.substr(equals + 1), join_path(parent->path, words.back()), origin);
  if (words.back() == "_delete_") {
    if (words.size() == 1 || !yes_or_no(*value)) refuse(origin, assignment);
    parent->kind = Kind::kMap;
    parent->origin = origin;
    parent->items.clear();
    return;
  }
  entry_of(*parent, words.back(), origin) = value;
}

}  // namespace duet
