#include <algorithm>
#include <functional>
#include <iostream>
#include <c10/util/StringUtil.h>
#include "base/detail/text.h"
#include "base/error.h"
#include "cli/catalog.h"
#include "cli/commands/commands.h"
#include "cli/registry.h"
#include "cli/runs/text_columns.h"

namespace duet {

namespace {

using Rows = std::vector<std::vector<std::string>>;

constexpr const char* kOtherSpellings = "each also with LR, Momentum or ParamScheduler at the end";

// "integer, at least 1"
std::string values_of(const ConfigKey& key) { return key.type + (key.range.empty() ? "" : ", " + key.range); }

// "integer, at least 1; default 3"
std::string value_text(const ConfigKey& key) {
  if (key.required) return values_of(key) + "; required";
  return values_of(key) + (key.fallback.empty() ? "" : "; default " + key.fallback);
}

std::vector<std::string> row_of(const std::string& name, const ConfigKey& key) {
  return {"  " + name, value_text(key) + "  # " + key.meaning};
}

bool holds(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// What the type is for; empty if nobody says.
std::string about_type(const TypeKind& kind, const std::string& type) {
  const AnyOptions* options = options_of(kind.name, type);
  return options == nullptr ? "" : options->fields().about();
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
  std::cout << "The keys of a config:\n"
            << text_columns(overview()) << "\nThe types that it may name:\n"
            << text_columns(types)
            << "\nduet help KEY lists what is below a key (duet help trainer), duet help TYPE what a type takes (duet "
               "help AdamW).\nA file may build on others (_base_: FILE), read the environment (${env:NAME,default}) "
               "and be overridden on the\ncommand line: key=value, ~key to delete one. `_delete_: true` in a map drops "
               "what its base holds there.\n";
}

// Whether there is a type or a kind of that name.
bool print_types(const std::string& topic) {
  bool found = false;
  for (const TypeKind& kind : type_kinds()) {
    if (kind.name == topic || kind.section == topic) {
      std::cout << kind.name << ", a type of " << kind.section << ": " << join(kind.types) << "\n";
      if (!kind.other_spellings.empty()) std::cout << "  " << kOtherSpellings << "\n";
      found = true;
    }
    if (!holds(kind.types, topic) && !holds(kind.other_spellings, topic)) continue;
    Rows rows;
    for (const ConfigKey& key : keys_of_type(kind, topic)) rows.push_back(row_of(key.path, key));
    std::cout << kind.section << ", type " << topic << (rows.empty() ? ": takes no further keys\n" : ":\n");
    if (const std::string about = about_type(kind, topic); !about.empty()) std::cout << "  " << about << "\n";
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

void print_topic(const std::string& topic) {
  const std::vector<Entry> entries = all_entries();
  const bool is_type = print_types(topic);
  if (print_keys(topic, entries) || is_type) return;
  throw ConfigError("[duet] found no key or type '" + topic + "', expected one of those that duet help lists" +
                    did_you_mean(topic, topics(entries)));
}

// The same as Markdown, from which scripts/docs makes the reference: a page for each first-level heading.

std::string escaped(const std::string& text) {
  std::string result;
  for (const char letter : text) {
    if (std::string("|<>*_[]").find(letter) != std::string::npos) result += '\\';
    result += letter;
  }
  return result;
}

std::string code(std::string text) {
  c10::ReplaceAll(text, "|", "\\|");
  return text.empty() ? "" : "`" + text + "`";
}

void print_markdown_table(const std::vector<ConfigKey>& keys) {
  if (keys.empty()) return;
  std::cout << "\n| key | what it is | value | default |\n|---|---|---|---|\n";
  for (const ConfigKey& key : keys) {
    std::cout << "| " << code(key.path) << " | " << escaped(key.meaning) << " | " << escaped(values_of(key)) << " | "
              << (key.required ? "required" : code(key.fallback)) << " |\n";
  }
}

void print_markdown() {
  std::cout
      << "# Keys of a config\n\n`duet help KEY` prints the same for one key and what is below it. Durations count "
         "steps unless their sentence says otherwise.\n";
  for (const auto& [name, keys] : config_sections()) {
    std::cout << "\n## " << (name.empty() ? "Top level" : name) << "\n";
    print_markdown_table(keys);
  }
  for (const TypeKind& kind : type_kinds()) {
    std::cout << "\n# Types: " << kind.name << "\n\nWhat `type` under " << code(kind.section) << " may be"
              << (kind.other_spellings.empty() ? "" : std::string(", ") + kOtherSpellings) << ".\n";
    for (const std::string& type : kind.types) {
      std::cout << "\n## " << type << "\n";
      if (const std::string about = about_type(kind, type); !about.empty()) std::cout << "\n" << escaped(about) << "\n";
      print_markdown_table(keys_of_type(kind, type));
    }
  }
}

}  // namespace

int help_command(const Arguments& arguments) {
  if (arguments.markdown) {
    print_markdown();
  } else if (arguments.topic.empty()) {
    print_overview();
  } else {
    print_topic(arguments.topic);
  }
  std::cout.flush();
  return 0;
}

}  // namespace duet
