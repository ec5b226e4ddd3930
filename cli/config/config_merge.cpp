#include <filesystem>
#include <c10/util/StringUtil.h>
#include "base/error.h"
#include "cli/config/bounded_yaml.h"
#include "cli/config/config_data.h"
#include "io/file_io.h"

namespace duet {

namespace {

using Data = ConfigNode::Data;
using Kind = ConfigNode::Kind;
namespace fs = std::filesystem;

constexpr std::size_t kMostBases = 64;  // a few files that name each other often would be read without end

// One file under all of its names.
std::string identity(const std::string& path) {
  std::error_code failed;
  const fs::path canonical = fs::weakly_canonical(path, failed);
  return failed ? path : canonical.string();
}

std::shared_ptr<Data> merged(std::shared_ptr<Data> base, std::shared_ptr<Data> over);

void merge_map(Data& base, const Data& over) {
  base.origin = over.origin;
  for (const auto& [key, value] : over.items) {
    bool found = false;
    for (auto& [name, item] : base.items) {
      if (name != key) continue;
      item = merged(item, value);
      found = true;
    }
    if (!found) base.items.emplace_back(key, value);
  }
}

std::shared_ptr<Data> merged(std::shared_ptr<Data> base, std::shared_ptr<Data> over) {
  if (over->kind != Kind::kMap || over->replaces || base->is_unset()) return over;
  if (base->kind != Kind::kMap) {
    fail_at(*over, c10::str("is a map here and ", describe(*base), " in its base (", base->origin,
                            "), expected a map in both to merge "
                            "them; add _delete_: true to it to replace the base's"));
  }
  merge_map(*base, *over);
  return base;
}

// Loads the files of one config and puts them over each other.
class BaseMerger {
 public:
  std::shared_ptr<Data> merge(const std::shared_ptr<Data>& root, const std::string& source) {
    const std::shared_ptr<Data> named = take(*root, "_base_");
    if (!named) return root;
    open_.emplace_back(identity(source), source);
    auto whole = std::make_shared<Data>();
    whole->kind = Kind::kMap;
    whole->origin = root->origin;
    for (const Data* name : names_in(*named)) add_disjoint(*whole, *load(*name, source), *name);
    open_.pop_back();
    merge_map(*whole, *root);
    return whole;
  }

 private:
  static std::shared_ptr<Data> take(Data& map, const std::string& key) {
    const std::shared_ptr<Data> found = map.get(key);
    std::erase_if(map.items, [&](const auto& item) { return item.first == key; });
    return found;
  }

  static std::vector<const Data*> names_in(const Data& named) {
    std::vector<const Data*> names;
    if (named.kind == Kind::kValue) names.push_back(&named);
    if (named.kind == Kind::kList) {
      for (const auto& item : named.items) names.push_back(item.second.get());
    }
    const bool valid = named.kind == Kind::kList || named.kind == Kind::kValue;
    if (!valid) fail_at(named, c10::str("is ", describe(named), ", expected a file or a list of files"));
    for (const Data* name : names) {
      if (name->kind != Kind::kValue || name->text.empty()) {
        fail_at(*name, c10::str("is ", describe(*name), ", expected the path of a YAML file, relative to this one"));
      }
    }
    return names;
  }

  std::shared_ptr<Data> load(const Data& name, const std::string& source) {
    const std::string path = (fs::path(source).parent_path() / name.text).lexically_normal().string();
    check_no_circle(path, name);
    if (++loaded_ > kMostBases) {
      fail_at(name,
              c10::str("comes after ", kMostBases, " files that are bases already, expected no more; merge some"));
    }
    return merge(parse_yaml(text_at(path, name), path), path);
  }

  static std::string text_at(const std::string& path, const Data& name) try {
    return read_yaml_text(path);
  } catch (const file_io::IoError& error) {
    fail_at(name, c10::str("names '", path, "', which cannot be read (", error.what(),
                           "), expected a YAML file; a path is relative to the file that names it"));
  }

  void check_no_circle(const std::string& path, const Data& name) const {
    std::string chain;
    bool circle = false;
    for (const auto& [file, shown] : open_) {
      circle = circle || file == identity(path);
      if (circle) chain += shown + " -> ";
    }
    if (circle) fail_at(name, c10::str("leads back to where it began: ", chain, path, "; remove one of them"));
  }

  // As in mmengine: between two bases there is no order that a reader could see.
  static void add_disjoint(Data& whole, const Data& base, const Data& name) {
    for (const auto& [key, value] : base.items) {
      if (const auto first = whole.get(key)) {
        throw ConfigError(c10::str("[Config] ", value->origin, ": ", key, " is also in another base, at ",
                                   first->origin, ", expected every key in one of the bases of ", name.origin,
                                   "; remove it from one, or let one "
                                   "build on the other"));
      }
      whole.items.emplace_back(key, value);
    }
  }

  std::size_t loaded_ = 0;
  std::vector<std::pair<std::string, std::string>> open_;  // files being merged: identity, and the path as shown
};

}  // namespace

std::shared_ptr<Data> merge_bases(std::shared_ptr<Data> root, const std::string& source) {
  return BaseMerger().merge(root, source);
}

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
  return ConfigNode(merge_bases(parse_yaml(text, source), source));
}

}  // namespace duet
