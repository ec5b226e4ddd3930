#include <algorithm>
#include <iostream>
#include <c10/util/StringUtil.h>
#include "base/detail/text.h"
#include "base/error.h"
#include "cli/catalog.h"
#include "cli/commands/commands.h"
#include "cli/commands/reference.h"
#include "cli/key_hint.h"
#include "cli/registry.h"

namespace duet {

namespace {

using Keys = std::vector<ConfigKey>;
using Row = std::pair<std::string, std::string>;

std::string padded(const std::string& text, std::size_t width) {
  return text + std::string(width > text.size() ? width - text.size() : 0, ' ');
}

// "integer, at least 1; default 3"
std::string value_text(const ConfigKey& key) {
  std::string text = key.type + (key.range.empty() ? "" : ", " + key.range);
  if (key.required) return text + "; required";
  return key.fallback.empty() ? text : text + "; default " + key.fallback;
}

void print_rows(const std::vector<Row>& rows) {
  std::size_t width = 0;
  for (const Row& row : rows) width = std::max(width, row.first.size());
  for (const Row& row : rows) std::cout << "  " << padded(row.first, width) << "  " << row.second << "\n";
}

void print_keys(const Keys& keys) {
  std::vector<Row> rows;
  for (const ConfigKey& key : keys)
    rows.emplace_back(key.path, value_text(key) + (key.meaning.empty() ? "" : "  # " + key.meaning));
  print_rows(rows);
}

void print_about(const std::string& about) {
  if (!about.empty()) std::cout << "  " << about << "\n";
}

void print_kind(const TypeKind& kind) {
  std::cout << kind.name << ", a type of " << kind.section << ": " << join(kind.types) << "\n";
  if (!kind.further_names.empty()) std::cout << "  each also with LR, Momentum or ParamScheduler at the end\n";
}

// One row per top key: its value, or the names of what is below it.
std::vector<Row> overview(const Keys& keys) {
  std::vector<Row> rows;
  for (const ConfigKey& key : keys) {
    const std::size_t dot = key.path.find('.');
    const std::string top = key.path.substr(0, dot);
    if (dot == std::string::npos) {
      rows.emplace_back(top, value_text(key));
      continue;
    }
    std::string below = key.path.substr(dot + 1);
    below = below.substr(0, below.find('.'));
    if (rows.empty() || rows.back().first != top) rows.emplace_back(top, "");
    std::string& names = rows.back().second;
    const std::string listed = ", " + names + ",";
    if (listed.find(", " + below + ",") == std::string::npos) names += (names.empty() ? "" : ", ") + below;
  }
  return rows;
}

void print_overview() {
  std::cout << "The keys of a config:\n";
  print_rows(overview(keys_of_config()));
  std::cout << "\nThe types that it may name:\n";
  std::vector<Row> rows;
  for (const TypeKind& kind : type_kinds()) rows.emplace_back(kind.name, join(kind.types));
  print_rows(rows);
  std::cout
      << "\nduet help KEY lists what is below a key (duet help trainer), duet help TYPE what a type takes (duet help "
         "AdamW).\n"
         "A file may build on others (_base_: FILE), read the environment (${env:NAME,default}) and be overridden on "
         "the\n"
         "command line: key=value, ~key to delete one. `_delete_: true` in a map drops what its base holds there.\n";
}

bool holds(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// "EMAHook.momentum": whether there is such a key of a type.
bool print_key_of_type(const std::string& topic) {
  const std::size_t dot = topic.find('.');
  if (dot == std::string::npos) return false;
  const std::string type = topic.substr(0, dot), path = topic.substr(dot + 1);
  bool found = false;
  for (const TypeKind& kind : type_kinds()) {
    if (!holds(kind.types, type) && !holds(kind.further_names, type)) continue;
    Keys keys = keys_of_type(kind, type);
    std::erase_if(keys, [&](const ConfigKey& key) { return key.path != path; });
    print_keys(keys);
    found = found || !keys.empty();
  }
  return found;
}

// "lr": whether it is the last part of a key.
bool print_keys_that_end_with(const std::string& topic) {
  const std::vector<std::string> names = full_keys_of(topic);
  Keys keys = keys_of_config();
  std::erase_if(keys, [&](const ConfigKey& key) { return !holds(names, key.path); });
  print_keys(keys);
  return !keys.empty();
}

// What is below data.val is below data.train, too.
std::string of_training(const std::string& topic) {
  for (const std::string part : {"data.val.", "data.test.", "data.predict."}) {
    if (topic.starts_with(part)) return "data.train." + topic.substr(part.size());
  }
  return topic;
}

// "masks" and "data.train.masks": whether types have such a key, in that place of a config.
bool print_keys_of_types(const std::string& topic) {
  const std::string place = of_training(topic);
  Keys found;
  for (const TypeKind& kind : type_kinds()) {
    const bool is_below = place.starts_with(kind.section + ".");
    const std::string path = is_below ? place.substr(kind.section.size() + 1) : topic;
    for (const std::string& type : kind.types) {
      for (ConfigKey& key : keys_of_type(kind, type)) {
        if (key.path != path) continue;
        key.path = type + "." + path;
        found.push_back(std::move(key));
      }
    }
  }
  print_keys(found);
  return !found.empty();
}

// Whether there is a type, a kind or a key of that name.
bool print_topic(const std::string& topic) {
  bool found = false;
  for (const TypeKind& kind : type_kinds()) {
    if (kind.name == topic || kind.section == topic) {
      print_kind(kind);
      found = true;
    }
    if (!holds(kind.types, topic) && !holds(kind.further_names, topic)) continue;
    const Keys keys = keys_of_type(kind, topic);
    std::cout << kind.section << ", type " << topic << (keys.empty() ? ": takes no further keys\n" : ":\n");
    if (const AnyOptions* options = options_of(kind.name, topic)) print_about(options->fields().about());
    print_keys(keys);
    found = true;
  }
  Keys keys = keys_of_config();
  std::erase_if(keys, [&](const ConfigKey& key) { return key.path != topic && key.path.rfind(topic + ".", 0) != 0; });
  print_keys(keys);
  return found || !keys.empty() || print_key_of_type(topic) || print_keys_that_end_with(topic) ||
         print_keys_of_types(topic);
}

std::vector<std::string> topics() {
  std::vector<std::string> names;
  for (const TypeKind& kind : type_kinds()) {
    names.push_back(kind.name);
    for (const std::string& type : kind.types) {
      names.push_back(type);
      for (const ConfigKey& key : keys_of_type(kind, type)) {
        names.push_back(type + "." + key.path);
        names.push_back(kind.section + "." + key.path);
      }
    }
  }
  for (const ConfigKey& key : keys_of_config()) {
    for (std::size_t dot = key.path.find('.'); dot != std::string::npos; dot = key.path.find('.', dot + 1)) {
      names.push_back(key.path.substr(0, dot));
    }
    names.push_back(key.path);
  }
  return names;
}

}  // namespace

int help_command(const Arguments& arguments) {
  if (arguments.markdown) {
    std::cout << config_reference();
  } else if (arguments.topic.empty()) {
    print_overview();
  } else if (!print_topic(arguments.topic)) {
    throw ConfigError(c10::str("[duet] found no key or type '", arguments.topic,
                               "', expected one of those that duet help lists",
                               did_you_mean(arguments.topic, topics())));
  }
  std::cout.flush();
  return 0;
}

}  // namespace duet
