#include "core/exported/tree_names.h"
#include <cstddef>
#include <functional>
#include <nlohmann/json.hpp>
#include "io/bounded_json.h"
#include "io/file_io.h"

namespace duet::exported {

namespace {

using Json = nlohmann::ordered_json;

// A step from a container to one of its items: a key, or a place.
struct Step {
  std::string key;
  bool is_place;
};
using Path = std::vector<Step>;

Json parsed(const Json& text, const char* what) {
  return text.is_string() ? parse_json<Json>(text.get<std::string>(), what) : Json();
}

// Keys of a dict, a dataclass or a named tuple; empty for lists and tuples.
std::vector<std::string> keys_of(const Json& spec, std::size_t count, const Json& named_tuples) {
  if (!spec.at("context").is_string()) return {};
  const std::string text = spec.at("context").get<std::string>();
  Json context =
      named_tuples.contains(text) ? named_tuples.at(text).at("field_names") : parse_json_or_discard<Json>(text);
  if (context.is_array() && context.size() == 2 && context[0].is_array()) context = context[0];
  std::vector<std::string> keys;
  if (!context.is_array() || context.size() != count) return {};
  for (const Json& key : context) keys.push_back(key.is_string() ? key.get<std::string>() : key.dump());
  return keys;
}

void add_leaves(const Json& spec, const Json& named_tuples, const Path& path, std::vector<Path>& leaves) {
  if (spec.at("type").is_null()) {
    leaves.push_back(path);
    return;
  }
  const Json& children = spec.at("children_spec");
  const std::vector<std::string> keys = keys_of(spec, children.size(), named_tuples);
  for (std::size_t i = 0; i < children.size(); ++i) {
    Path inner = path;
    inner.push_back({keys.empty() ? std::to_string(i) : keys[i], keys.empty()});
    add_leaves(children[i], named_tuples, inner, leaves);
  }
}

// A spec is [version, tree].
std::vector<Path> leaves_of(const Json& spec, const Json& named_tuples, const char* what) {
  const Json document = parsed(spec, what);
  std::vector<Path> leaves;
  if (document.is_array() && document.size() == 2) add_leaves(document[1], named_tuples, {}, leaves);
  return leaves;
}

std::string dotted(const Path& path, std::size_t first) {
  std::string name;
  for (std::size_t i = first; i < path.size(); ++i) name += (i > first ? "." : "") + path[i].key;
  return name;
}

}  // namespace

// The tree is (positional arguments, keyword arguments); forward()'s names come apart.
std::vector<InputName> input_names(const Json& signature, const Json& named_tuples) {
  const Json names = signature.value("forward_arg_names", Json());
  std::vector<InputName> inputs;
  for (Path& path : leaves_of(signature.at("in_spec"), named_tuples, "the tree of its inputs")) {
    if (path.size() < 2) return {};
    const std::size_t place = path[1].is_place ? std::stoul(path[1].key) : 0;
    if (path[1].is_place && names.is_array() && place < names.size())
      path[1] = {names[place].get<std::string>(), false};
    std::string python = "L";
    for (std::size_t i = 1; i < path.size(); ++i) {
      python += path[i].is_place ? "[" + path[i].key + "]" : "['" + path[i].key + "']";
    }
    inputs.push_back({dotted(path, 1), python});
  }
  return inputs;
}

std::vector<std::string> output_names(const Json& signature, const Json& named_tuples) {
  std::vector<std::string> names;
  for (const Path& path : leaves_of(signature.at("out_spec"), named_tuples, "the tree of its outputs"))
    names.push_back(dotted(path, 0));
  return names;
}

}  // namespace duet::exported
