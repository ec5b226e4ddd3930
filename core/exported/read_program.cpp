#include <algorithm>
#include <string>
#include <utility>
#include <vector>
#include <c10/util/StringUtil.h>
#include <nlohmann/json.hpp>
#include "base/detail/text.h"
#include "base/error.h"
#include "core/exported/graph_reader.h"
#include "io/bounded_json.h"
#include "io/file_io.h"
#include "io/pt2_file.h"

namespace duet::exported {

namespace {

constexpr int64_t kSchemaMajor = 8;

const Json& meta_of(const Json& graph, const std::string& tensor) {
  const auto meta = graph.at("tensor_values").find(tensor);
  expect_file(meta != graph.at("tensor_values").end(), "its graph does not say the shape of the input '", tensor, "'");
  return *meta;
}

// "8" or the expression of each dimension.
std::vector<std::string> sizes_of(const Json& meta) {
  std::vector<std::string> sizes;
  for (const Json& size : meta.at("sizes")) {
    const auto [kind, value] = tagged(size);
    sizes.push_back(kind == "as_int" ? std::to_string(value->get<int64_t>())
                                     : value->at("expr_str").get<std::string>());
  }
  return sizes;
}

// What the graph takes: the model's tensors, and what forward() gets.
class InputReader {
 public:
  InputReader(const Json& graph, GraphReader& reader, Program& program)
      : graph_(graph), reader_(reader), program_(program) {}

  void add(const Json& spec) {
    using Kind = ModelTensor::Kind;
    const auto [kind, found] = tagged(spec);
    const Json& value = *found;
    if (kind == "parameter") return add_tensor(Kind::kParameter, value, "parameter_name");
    if (kind == "buffer") return add_tensor(Kind::kBuffer, value, "buffer_name");
    if (kind == "tensor_constant") return add_tensor(Kind::kConstant, value, "tensor_constant_name");
    if (kind == "constant_input") return add_constant(value.at("name"));
    if (kind != "user_input") {
      throw ConfigError("takes an input of the kind " + one_line(kind) + ", which only Python has; export without it");
    }
    const auto [argument, name] = tagged(value.at("arg"));
    if (argument == "as_tensor") return add_user_tensor(name->at("name").get<std::string>());
    if (argument == "as_none" || argument == "as_int" || argument == "as_float" || argument == "as_bool" ||
        argument == "as_string") {
      return add_constant("");
    }
    throw ConfigError("takes an input of the kind " + one_line(argument) +
                      ", expected tensors; give a dynamic number as a 0-dim tensor");
  }

 private:
  void add_tensor(ModelTensor::Kind kind, const Json& value, const char* key) {
    const std::string argument = value.at("arg").at("name").get<std::string>();
    const Json& meta = meta_of(graph_, argument);
    program_.tensors.push_back({kind, value.at(key).get<std::string>(), reader_.slot(argument),
                                pt2_dtype(meta.at("dtype").get<int64_t>()), sizes_of(meta)});
  }
  void add_user_tensor(const std::string& name) {
    program_.inputs.push_back(
        {.name = name, .python = {}, .slot = reader_.slot(name), .sizes = sizes_of(meta_of(graph_, name))});
  }
  void add_constant(const std::string& name) {
    program_.inputs.push_back({.name = name, .python = {}, .slot = 0, .is_tensor = false});
  }

  const Json& graph_;
  GraphReader& reader_;
  Program& program_;
};

std::optional<int64_t> bound_of(const Json& json) {
  return json.is_number_integer() ? std::optional(json.get<int64_t>()) : std::nullopt;
}

// PyTorch flattens nested arguments and results: "batch.image" names a leaf of a dict, "aux.0" one of a list.

// A step from a container to one of its items: a key, or a place.
struct Step {
  std::string key;
  bool is_place;
};
using Path = std::vector<Step>;

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
  const Json document = spec.is_string() ? parse_json<Json>(spec.get<std::string>(), what) : Json();
  std::vector<Path> leaves;
  if (document.is_array() && document.size() == 2) add_leaves(document[1], named_tuples, {}, leaves);
  return leaves;
}

std::string dotted(const Path& path, std::size_t first) {
  std::string name;
  for (std::size_t i = first; i < path.size(); ++i) name += (i > first ? "." : "") + path[i].key;
  return name;
}

// The names by which Python's caller and its guards know the inputs. The tree is (positional arguments, keyword
// arguments); forward()'s names come apart.
void name_inputs(const Json& signature, const Json& named_tuples, std::vector<UserInput>& inputs) {
  const Json names = signature.value("forward_arg_names", Json());
  std::vector<Path> paths = leaves_of(signature.at("in_spec"), named_tuples, "the tree of its inputs");
  const bool fits = std::ranges::all_of(paths, [](const Path& path) { return path.size() >= 2; });
  if (!fits || paths.size() != inputs.size()) return;
  for (std::size_t k = 0; k < paths.size(); ++k) {
    Path& path = paths[k];
    const std::size_t place = path[1].is_place ? std::stoul(path[1].key) : 0;
    if (path[1].is_place && names.is_array() && place < names.size()) {
      path[1] = {names[place].get<std::string>(), false};
    }
    inputs[k].name = dotted(path, 1);
    inputs[k].python = "L";
    for (std::size_t i = 1; i < path.size(); ++i) {
      inputs[k].python += path[i].is_place ? "[" + path[i].key + "]" : "['" + path[i].key + "']";
    }
  }
}

void name_values(const Json& module, Program& program) {
  const Json named_tuples = module.value("treespec_namedtuple_fields", Json::object());
  for (const Json& entry : module.at("module_call_graph")) {
    if (entry.at("fqn") != "" || entry.at("signature").is_null()) continue;
    const Json& signature = entry.at("signature");
    name_inputs(signature, named_tuples, program.inputs);
    for (const Path& path : leaves_of(signature.at("out_spec"), named_tuples, "the tree of its outputs")) {
      program.outputs.push_back(dotted(path, 0));
    }
  }
}

Program read(const Json& json) {
  const Json& module = json.at("graph_module");
  const int64_t major = json.at("schema_version").at("major").get<int64_t>();
  expect_file(major == kSchemaMajor, "its schema has version ", major, ", expected ", kSchemaMajor);
  Program program;
  const Json& verifiers = json.at("verifiers");
  program.is_decomposed =
      std::none_of(verifiers.begin(), verifiers.end(), [](const Json& v) { return v == "TRAINING"; });
  ModuleList modules;
  GraphReader reader(modules);
  program.graph = reader.read(module.at("graph"));
  InputReader inputs(module.at("graph"), reader, program);
  for (const Json& spec : module.at("signature").at("input_specs")) inputs.add(spec);
  program.graph.slots = std::max(program.graph.slots, reader.slot_count());
  for (const Json& entry : module.at("module_call_graph")) {
    const std::string path = entry.at("fqn").get<std::string>();
    modules.of(path.substr(0, path.find('@')), "");
  }
  name_values(module, program);
  for (const auto& [expression, range] : json.at("range_constraints").items()) {
    program.ranges.push_back({expression, bound_of(range.at("min_val")), bound_of(range.at("max_val"))});
  }
  if (json.contains("guards_code")) program.guards = json["guards_code"].get<std::vector<std::string>>();
  program.modules = std::move(modules.list);
  for (const Json& spec : module.at("signature").at("output_specs")) {
    program.is_functional = program.is_functional || tagged(spec).first != "user_output";
  }
  return program;
}

}  // namespace

Program read_program(const std::string& text) {
  const Json json = parse_json<Json>(text, "its program");
  try {
    return read(json);
  } catch (const nlohmann::json::exception& error) {
    throw MalformedFile{c10::str("its program is not what torch.export.save writes: ", one_line(error.what()))};
  }
}

}  // namespace duet::exported
