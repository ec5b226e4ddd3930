#include <algorithm>
#include <filesystem>
#include <c10/util/StringUtil.h>
#include "base/detail/text.h"
#include "base/error.h"
#include "cli/config/config_data.h"
#include "io/file_io.h"

namespace duet {

// What is laid over a config: a file over its bases, words of the command line over all.

namespace {

using Data = ConfigNode::Data;
using Kind = ConfigNode::Kind;

constexpr int kMostBases = 64;  // files that name each other would be read without end

std::shared_ptr<Data> merged(std::shared_ptr<Data> base, std::shared_ptr<Data> over);

void merge_map(Data& base, const Data& over) {
  base.origin = over.origin;
  for (const auto& [key, value] : over.items) {
    const auto found =
        std::find_if(base.items.begin(), base.items.end(), [&](const auto& item) { return item.first == key; });
    if (found == base.items.end()) {
      base.items.emplace_back(key, value);
    } else {
      found->second = merged(found->second, value);
    }
  }
}

std::shared_ptr<Data> merged(std::shared_ptr<Data> base, std::shared_ptr<Data> over) {
  if (over->kind != Kind::kMap || over->replaces || base->is_unset()) return over;
  if (base->kind != Kind::kMap) {
    fail_at(*over, c10::str("is a map here and ", describe(*base), " in its base (", base->origin,
                            "), expected a map in both to merge them; add _delete_: true to it to replace the base's"));
  }
  merge_map(*base, *over);
  return base;
}

// What `_base_` names: one file or several.
std::vector<const Data*> bases_in(const Data& named) {
  std::vector<const Data*> names;
  if (named.kind == Kind::kValue) names.push_back(&named);
  if (named.kind == Kind::kList) {
    for (const auto& item : named.items) names.push_back(item.second.get());
  }
  const auto is_name = [](const Data* name) { return name->kind == Kind::kValue && !name->text.empty(); };
  if (std::ranges::all_of(names, is_name) && (!names.empty() || named.kind == Kind::kList)) return names;
  fail_at(named, c10::str("is ", describe(named), ", expected a YAML file or a list of such, relative to this one"));
}

// As in mmengine: between two bases there is no order that a reader could see.
void add_disjoint(Data& whole, const Data& base, const Data& name) {
  for (const auto& [key, value] : base.items) {
    if (const auto first = whole.get(key)) {
      throw ConfigError(c10::str("[Config] ", value->origin, ": ", key, " is also in another base, at ", first->origin,
                                 ", expected every key in one of the bases of ", name.origin,
                                 "; remove it from one, or let one build on the other"));
    }
    whole.items.emplace_back(key, value);
  }
}

// `root` over its bases; `loaded` counts all files of the config.
std::shared_ptr<Data> over_bases(const std::shared_ptr<Data>& root, const std::string& source, int& loaded) {
  const std::shared_ptr<Data> named = root->get("_base_");
  if (!named) return root;
  std::erase_if(root->items, [](const auto& item) { return item.first == "_base_"; });
  auto whole = std::make_shared<Data>();
  whole->kind = Kind::kMap;
  for (const Data* name : bases_in(*named)) {
    const std::string path = (std::filesystem::path(source).parent_path() / name->text).lexically_normal().string();
    if (++loaded > kMostBases) {
      fail_at(*name, c10::str("names '", path, "' after ", kMostBases,
                              " other bases, expected fewer; does one of them lead back to itself?"));
    }
    std::string text;
    try {
      text = read_yaml_text(path);
    } catch (const file_io::IoError& error) {
      fail_at(*name, c10::str("names '", path, "', which cannot be read (", error.what(),
                              "), expected a YAML file; a path is relative to the file that names it"));
    }
    add_disjoint(*whole, *over_bases(parse_yaml(text, path), path, loaded), *name);
  }
  merge_map(*whole, *root);
  return whole;
}

}  // namespace

ConfigNode ConfigNode::parse_file(const std::string& path) {
  std::string text;
  try {
    text = read_yaml_text(path);
  } catch (const file_io::IoError& error) {
    throw ConfigError(c10::str("[Config] ", error.what(), ", expected a YAML file; check the path"));
  }
  return parse_text(text, path);
}

ConfigNode ConfigNode::parse_text(const std::string& text, const std::string& source) {
  int loaded = 0;
  return ConfigNode(over_bases(parse_yaml(text, source), source, loaded));
}

namespace {

[[noreturn]] void refuse_assignment(const std::string& origin, const std::string& assignment) {
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
    throw ConfigError(c10::str("[Config] ", origin, ": there is no ", join_path(parent.path, key), " to delete; ",
                               known_and_nearest(key, keys_in(parent.items))));
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
  if (words.empty()) refuse_assignment(origin, assignment);
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
  if (equals == std::string::npos || words.empty()) refuse_assignment(origin, assignment);
  const std::size_t begin = assignment.find_first_not_of(" \t", equals + 1);
  if (begin == std::string::npos || assignment[begin] == '#') {  // often a variable of the shell that is not set
    throw ConfigError(c10::str("[Config] ", origin, ": found '", assignment, "' without a value; write ", assignment,
                               "null for the default, or ", assignment, "\"''\" for an empty text"));
  }
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
    if (words.size() == 1 || !yes_or_no(*value)) refuse_assignment(origin, assignment);
    parent->kind = Kind::kMap;
    parent->origin = origin;
    parent->items.clear();
    return;
  }
  entry_of(*parent, words.back(), origin) = value;
}

}  // namespace duet
