#include <algorithm>
#include <functional>
#include <iostream>
#include <c10/util/StringUtil.h>
#include "base/detail/text.h"
#include "base/error.h"
#include "cli/catalog.h"
#include "cli/commands/commands.h"
#include "cli/commands/reference.h"
#include "cli/registry.h"
#include "cli/runs/text_columns.h"

namespace duet {

namespace {

using Rows = std::vector<std::vector<std::string>>;

// "integer, at least 1; default 3"
std::string value_text(const ConfigKey& key) {
  std::string text = key.type + (key.range.empty() ? "" : ", " + key.range);
  if (key.required) return text + "; required";
  return key.fallback.empty() ? text : text + "; default " + key.fallback;
}

std::vector<std::string> row_of(const std::string& name, const ConfigKey& key) {
  return {"  " + name, value_text(key) + "  # " + key.meaning};
}

bool holds(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// A key by all of its names: "optim_wrapper.clip_grad.max_norm"; "AdamW.lr", which stands at
// optim_wrapper.optimizer.lr.
struct Entry {
  std::string name, place;
  bool is_of_type = false;
  ConfigKey key;
};

std::vector<Entry> all_entries() {
  std::vector<Entry> entries;
  for (const ConfigKey& key : keys_of_config()) entries.push_back({key.path, key.path, false, key});
  for (const TypeKind& kind : type_kinds()) {
    for (const std::string& type : kind.types) {
      for (const ConfigKey& key : keys_of_type(kind, type))
        entries.push_back({type + "." + key.path, kind.section + "." + key.path, true, key});
    }
  }
  return entries;
}

// One row per top key: its value, or the names of what is below it.
Rows overview() {
  Rows rows;
  for (const auto& [top, keys] : config_sections()) {
    std::vector<std::string> below;
    for (const ConfigKey& key : keys) {
      const std::size_t begin = top.empty() ? 0 : top.size() + 1;
      const std::string name = key.path.substr(begin, key.path.find('.', begin) - begin);
      if (top.empty()) rows.push_back({"  " + name, value_text(key)});
      if (!holds(below, name)) below.push_back(name);
    }
    if (!top.empty()) rows.push_back({"  " + top, join(below)});
  }
  return rows;
}

void print_overview() {
  Rows types;
  for (const TypeKind& kind : type_kinds()) types.push_back({"  " + kind.name, join(kind.types)});
  std::cout
      << "The keys of a config:\n"
      << text_columns(overview()) << "\nThe types that it may name:\n"
      << text_columns(types)
      << "\nduet help KEY lists what is below a key (duet help trainer), duet help TYPE what a type takes (duet help "
         "AdamW).\n"
         "A file may build on others (_base_: FILE), read the environment (${env:NAME,default}) and be overridden on "
         "the\n"
         "command line: key=value, ~key to delete one. `_delete_: true` in a map drops what its base holds there.\n";
}

// Whether there is a type or a kind of that name.
bool print_types(const std::string& topic) {
  bool found = false;
  for (const TypeKind& kind : type_kinds()) {
    if (kind.name == topic || kind.section == topic) {
      std::cout << kind.name << ", a type of " << kind.section << ": " << join(kind.types) << "\n";
      if (!kind.other_spellings.empty()) std::cout << "  each also with LR, Momentum or ParamScheduler at the end\n";
      found = true;
    }
    if (!holds(kind.types, topic) && !holds(kind.other_spellings, topic)) continue;
    const AnyOptions* options = options_of(kind.name, topic);
    Rows rows;
    for (const ConfigKey& key : keys_of_type(kind, topic)) rows.push_back(row_of(key.path, key));
    std::cout << kind.section << ", type " << topic << (rows.empty() ? ": takes no further keys\n" : ":\n");
    if (options != nullptr && !options->fields().about().empty())
      std::cout << "  " << options->fields().about() << "\n";
    std::cout << text_columns(rows);
    found = true;
  }
  return found;
}

// What is below data.val is below data.train, too.
std::string of_training(const std::string& topic) {
  for (const std::string part : {"data.val.", "data.test.", "data.predict."}) {
    if (topic.starts_with(part)) return "data.train." + topic.substr(part.size());
  }
  return topic;
}

// Whether there are keys that the topic means, in the nearest of these senses.
bool print_keys(const std::string& topic, const std::vector<Entry>& entries) {
  const std::string place = of_training(topic);
  const std::function<bool(const Entry&)> senses[] = {
      [&](const Entry& entry) {
        return entry.name == topic || (!entry.is_of_type && entry.name.starts_with(topic + "."));
      },
      [&](const Entry& entry) { return !entry.is_of_type && entry.name.ends_with("." + topic); },
      [&](const Entry& entry) { return entry.is_of_type && (entry.key.path == topic || entry.place == place); }};
  for (const auto& is_meant : senses) {
    Rows rows;
    for (const Entry& entry : entries) {
      if (is_meant(entry)) rows.push_back(row_of(entry.name, entry.key));
    }
    std::cout << text_columns(rows);
    if (!rows.empty()) return true;
  }
  return false;
}

std::vector<std::string> topics(const std::vector<Entry>& entries) {
  std::vector<std::string> names;
  for (const TypeKind& kind : type_kinds()) {
    names.push_back(kind.name);
    names.insert(names.end(), kind.types.begin(), kind.types.end());
  }
  for (const Entry& entry : entries) {
    names.insert(names.end(), {entry.name, entry.place, entry.name.substr(0, entry.name.find('.'))});
  }
  return names;
}

}  // namespace

int help_command(const Arguments& arguments) {
  if (arguments.markdown) {
    std::cout << config_reference();
  } else if (arguments.topic.empty()) {
    print_overview();
  } else {
    const std::vector<Entry> entries = all_entries();
    const bool is_type = print_types(arguments.topic);
    if (!print_keys(arguments.topic, entries) && !is_type) {
      throw ConfigError(c10::str("[duet] found no key or type '", arguments.topic,
                                 "', expected one of those that duet help lists",
                                 did_you_mean(arguments.topic, topics(entries))));
    }
  }
  std::cout.flush();
  return 0;
}

}  // namespace duet
