#include <algorithm>
#include <filesystem>
#include <c10/util/StringUtil.h>
#include "base/error.h"
#include "cli/config/config_data.h"
#include "io/file_io.h"

namespace duet {

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
std::vector<const Data*> names_in(const Data& named) {
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
  for (const Data* name : names_in(*named)) {
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

}  // namespace duet
