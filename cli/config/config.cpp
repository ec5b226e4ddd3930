#include <algorithm>
#include <c10/util/StringUtil.h>
#include "base/detail/pattern.h"
#include "base/detail/text.h"
#include "base/error.h"
#include "cli/config/config_data.h"

namespace duet {

using Data = ConfigNode::Data;
using Kind = ConfigNode::Kind;

namespace {

// Whether YAML reads the plain scalar `text` as a number, or as true or false.
bool is_number_or_bool(const std::string& text) {
  static const Pattern kTyped(
      R"([-+]?(\.\d+|\d+(\.\d*)?)([eE][-+]?\d+)?|0x[\da-fA-F]+|0o[0-7]+|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)|)"
      R"(true|True|TRUE|false|False|FALSE)");
  return kTyped.matches(text);
}

}  // namespace

std::string describe(const Data& data) {
  switch (data.kind) {
    case Kind::kAbsent: return "missing";
    case Kind::kNull: return "null";
    case Kind::kValue: return data.quoted || !is_number_or_bool(data.text) ? "'" + data.text + "'" : data.text;
    case Kind::kList: return c10::str("a list of ", data.items.size());
    case Kind::kMap: return "a map";
  }
  return {};
}

void fail_at(const Data& data, const std::string& message) {
  throw ConfigError(
      c10::str("[Config] ", data.origin, ": ", data.path.empty() ? "the config" : data.path, " ", message));
}

ConfigNode::ConfigNode() : data_(std::make_shared<Data>()) {}

Kind ConfigNode::kind() const { return data_->kind; }
const std::string& ConfigNode::origin() const { return data_->origin; }
const std::string& ConfigNode::path() const { return data_->path; }
const std::string& ConfigNode::text() const { return data_->text; }

bool ConfigNode::is_empty() const {
  if (data_->kind == Kind::kValue) return false;
  return std::all_of(data_->items.begin(), data_->items.end(),
                     [](const auto& item) { return item.second->kind == Kind::kAbsent; });
}

void ConfigNode::require_map() const {
  if (data_->kind == Kind::kValue || data_->kind == Kind::kList) {
    fail_at(*data_, "is " + describe(*data_) + ", expected a map of 'key: value', such as {type: ...}");
  }
}

bool ConfigNode::has(const std::string& key) const {
  const auto found = data_->kind == Kind::kMap ? data_->get(key) : nullptr;
  return found && found->kind != Kind::kAbsent;
}

ConfigNode ConfigNode::child(const std::string& key) const {
  require_map();
  if (!data_->knows(key)) data_->known.push_back(key);
  if (const auto found = data_->get(key)) return ConfigNode(found);
  auto absent = std::make_shared<Data>();
  absent->origin = data_->origin;
  absent->path = join_path(data_->path, key);
  data_->items.emplace_back(key, absent);
  return ConfigNode(absent);
}

std::vector<std::string> ConfigNode::keys() const {
  require_map();
  std::vector<std::string> keys;
  for (const auto& [key, item] : data_->items) {
    if (item->kind != Kind::kAbsent) keys.push_back(key);
  }
  return keys;
}

std::vector<ConfigNode> ConfigNode::list(const std::string& key) const {
  const ConfigNode node = child(key);
  std::vector<ConfigNode> nodes;
  if (node.data_->is_unset()) return nodes;
  if (node.kind() != Kind::kList) node.fail_value("", "a list, such as [{type: ...}]");
  for (const auto& item : node.data_->items) nodes.push_back(ConfigNode(item.second));
  return nodes;
}

std::vector<ConfigNode> ConfigNode::one_or_list(const std::string& key) const {
  const ConfigNode node = child(key);
  if (node.kind() == Kind::kMap || node.kind() == Kind::kValue) return {node};
  return list(key);
}

void ConfigNode::reject_unknown() const {
  if (data_->kind != Kind::kMap && data_->kind != Kind::kList) return;
  for (const auto& [key, item] : data_->items) {
    if (data_->kind == Kind::kMap && !data_->knows(key)) {
      throw ConfigError(c10::str("[Config] ", item->origin, ": unknown key '", key, "' in ",
                                 data_->path.empty() ? "the config" : data_->path, "; ",
                                 known_and_nearest(key, data_->known)));
    }
    if (!item->check_later) ConfigNode(item).reject_unknown();
  }
}

void ConfigNode::check_later() const { data_->check_later = true; }

void ConfigNode::located(const std::function<void()>& check) const {
  const auto placed = [this](const Error& error) {
    const std::string text = error.what();
    if (text.starts_with("[Config]")) return text;  // it names a closer place
    return c10::str("[Config] ", data_->origin, ": ", data_->path, ": ", text);
  };
  try {
    check();
  } catch (const ConfigError& error) {
    throw ConfigError(placed(error));
  } catch (const DataError& error) {
    throw DataError(placed(error));
  }
}

void ConfigNode::fail_missing(const std::string& key, const std::string& way_out) const {
  const ConfigNode missing = child(key);
  std::vector<std::string> unread;
  for (const auto& [name, item] : data_->items) {
    if (data_->kind == Kind::kMap && !data_->knows(name)) unread.push_back(name);
  }
  const std::string misspelt = misspelling_of(key, unread);
  if (misspelt.empty()) fail_at(*missing.data_, "is missing; " + way_out);
  throw ConfigError(c10::str("[Config] ", data_->get(misspelt)->origin, ": found key '", misspelt, "', but ",
                             missing.path(), " is missing; did you mean '", key, "'?"));
}

void ConfigNode::fail(const std::string& key, const std::string& message) const {
  if (key.empty()) fail_at(*data_, message);
  fail_at(*child(key).data_, message);
}

void ConfigNode::fail_value(const std::string& key, const std::string& expected) const {
  const ConfigNode node = key.empty() ? *this : child(key);
  fail_at(*node.data_, c10::str("is ", describe(*node.data_), ", expected ", expected));
}

}  // namespace duet
