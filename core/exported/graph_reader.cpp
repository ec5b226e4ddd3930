#include "core/exported/graph_reader.h"
#include <algorithm>
#include <limits>
#include <memory>
#include <set>
#include <sstream>
#include <c10/util/StringUtil.h>
#include "base/detail/text.h"
#include "base/error.h"
#include "core/detail/user_place.h"
#include "core/exported/ops.h"
#include "io/file_io.h"
#include "io/pt2_file.h"

namespace duet::exported {

namespace {

constexpr int kMaxGraphs = 16;  // within one another

std::string text_at(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
}

// JSON has no infinities: they are texts there.
double number_of(const Json& json) {
  if (!json.is_string()) return json.get<double>();
  const auto& word = json.get_ref<const std::string&>();
  if (word == "Infinity") return std::numeric_limits<double>::infinity();
  if (word == "-Infinity") return -std::numeric_limits<double>::infinity();
  expect_file(word == "NaN", "'", one_line(word), "' stands where a number is expected");
  return std::numeric_limits<double>::quiet_NaN();
}

// schema.Layout and schema.MemoryFormat as LibTorch counts them.
c10::IValue layout_of(int64_t number) {
  constexpr int64_t kStrided = 7;
  expect_file(number == kStrided, "it asks for a sparse tensor, expected dense ones");
  return static_cast<int64_t>(at::kStrided);
}
c10::IValue memory_format_of(int64_t number) {
  static constexpr at::MemoryFormat kFormats[] = {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast,
                                                  at::MemoryFormat::ChannelsLast3d, at::MemoryFormat::Preserve};
  expect_file(number >= 1 && number <= 4, "it asks for an unknown memory format (", number, ")");
  return static_cast<int64_t>(kFormats[number - 1]);
}

at::Device device_of(const Json& json) {
  const std::string type = json.at("type").get<std::string>();
  const Json index = json.value("index", Json());
  try {
    return at::Device(index.is_number_integer() ? c10::str(type, ":", index.get<int64_t>()) : type);
  } catch (const c10::Error&) {
    throw MalformedFile{"it names the device '" + one_line(type) + "', which does not exist"};
  }
}

// What a list's schema says of its items; without a schema what the items are does not matter.
c10::TypePtr element_of(c10::TypePtr type) {
  if (type == nullptr) return c10::AnyType::get();
  if (const auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  const auto list = type->cast<c10::ListType>();
  return list == nullptr ? c10::AnyType::get() : list->getElementType();
}

Slot::As wanted(c10::TypePtr type) {
  if (type == nullptr) return Slot::As::kItself;
  if (const auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  if (type->kind() == c10::TypeKind::TensorType) return Slot::As::kTensor;
  return type->kind() == c10::TypeKind::FloatType ? Slot::As::kFloat : Slot::As::kItself;
}

Argument constant(c10::IValue value, const c10::TypePtr& type) {
  const Slot::As as = wanted(type);
  if (as == Slot::As::kTensor && value.isScalar()) return {c10::IValue(wrapped_number(value))};
  if (as == Slot::As::kFloat && value.isInt()) return {c10::IValue(static_cast<double>(value.toInt()))};
  return {std::move(value)};
}

// A list that has nothing but constants is one itself.
Argument folded(List list) {
  c10::impl::GenericList values(list.element);
  for (const Argument& item : list.items) {
    const auto* value = std::get_if<c10::IValue>(&item.value);
    if (value == nullptr) return {std::move(list)};
    values.push_back(*value);
  }
  return {c10::IValue(std::move(values))};
}

// Types of numbers, layouts and formats are ints to an op, which takes any.
bool is_in_range(const c10::IValue& value, const c10::Argument& wanted) {
  c10::TypePtr type = wanted.real_type();
  if (const auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  int64_t count = 0;
  if (type->kind() == c10::TypeKind::ScalarTypeType) count = static_cast<int64_t>(at::ScalarType::NumOptions);
  if (type->kind() == c10::TypeKind::LayoutType) count = static_cast<int64_t>(at::Layout::NumOptions);
  if (type->kind() == c10::TypeKind::MemoryFormatType) count = static_cast<int64_t>(at::MemoryFormat::NumOptions);
  return count == 0 || !value.isInt() || (value.toInt() >= 0 && value.toInt() < count);
}

// A constant as the op's schema asks for it: Python takes 3 for a list of fixed length, too.
Argument fitting(Argument given, const c10::Argument& wanted, const std::string& op) {
  auto* value = std::get_if<c10::IValue>(&given.value);
  if (value == nullptr) return given;
  if (value->isScalar() && wanted.N().has_value() && wanted.type()->kind() == c10::TypeKind::ListType) {
    c10::impl::GenericList repeated(element_of(wanted.type()));
    for (int32_t i = 0; i < *wanted.N(); ++i) repeated.push_back(*value);
    *value = std::move(repeated);
  }
  expect_file(is_in_range(*value, wanted), "the argument '", wanted.name(), "' of the op ", op, " is out of range");
  if (value->isList()) {
    const c10::TypePtr element = element_of(wanted.type());
    for (const c10::IValue& item : value->toListRef()) {
      expect_file(item.type()->isSubtypeOf(*element), "the argument '", wanted.name(), "' of the op ", op, " holds ",
                  item.type()->repr_str(), ", expected ", element->repr_str());
    }
  }
  expect_file(value->type()->isSubtypeOf(*wanted.type()), "the argument '", wanted.name(), "' of the op ", op, " is ",
              value->type()->repr_str(), ", expected ", wanted.type()->repr_str());
  return given;
}

}  // namespace

std::pair<std::string, const Json*> tagged(const Json& json) {
  expect_file(json.is_object() && json.size() == 1, "a value in its graph has no type");
  return {json.begin().key(), &json.begin().value()};
}

std::size_t ModuleList::of(const std::string& path, const std::string& type) {
  const auto [found, is_new] = by_path_.emplace(path, list.size());
  if (is_new) list.push_back({path, ""});
  if (!type.empty() && list[found->second].type.empty()) list[found->second].type = type;
  return found->second;
}

// The second call of a module is "fc@1" there.
std::size_t ModuleList::innermost(const std::string& stack) {
  std::size_t last = 0;
  std::istringstream entries(stack);
  for (std::string entry; std::getline(entries, entry, ';');) {
    const std::size_t first = entry.find(','), second = entry.find(',', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string path = entry.substr(first + 1, second - first - 1), type = entry.substr(second + 1);
    last = of(path.substr(0, path.find('@')), type.substr(type.rfind('.') + 1));
  }
  return last;
}

std::size_t GraphReader::slot(const std::string& name) { return slots_.emplace(name, slots_.size()).first->second; }

Graph GraphReader::read(const Json& json) {
  Graph graph;
  for (const Json& input : json.at("inputs")) {
    const Argument argument = read_argument(input, nullptr);
    if (const auto* value = std::get_if<Slot>(&argument.value)) graph.inputs.push_back(*value);
  }
  for (const Json& node : json.at("nodes")) graph.nodes.push_back(read_node(node));
  for (const Json& output : json.at("outputs")) graph.outputs.push_back(read_argument(output, nullptr));
  graph.slots = slots_.size();
  check_order(graph);
  find_last_reads(graph);
  return graph;
}

Node GraphReader::read_node(const Json& json) {
  Node node;
  node.target = json.at("target").get<std::string>();
  const Json& metadata = json.at("metadata");
  node.place = python_place(text_at(metadata, "stack_trace"));
  node.module = modules_.innermost(text_at(metadata, "nn_module_stack"));
  if (const SymbolicOp symbolic = symbolic_op(node.target)) {
    node.op = symbolic;
  } else if (const HigherOrderOp higher_order = higher_order_op(node.target)) {
    node.op = higher_order;
  } else if (node.target.starts_with("torch.ops.") && !node.target.starts_with("torch.ops.higher_order.")) {
    read_op(json, node);
  } else {
    throw ConfigError("calls " + one_line(node.target) + (node.place.empty() ? "" : " at " + node.place) +
                      ", which cannot be trained here; export a model without it");
  }
  if (!std::holds_alternative<c10::OperatorHandle>(node.op)) {
    for (const Json& input : json.at("inputs")) node.arguments.push_back(read_argument(input.at("arg"), nullptr));
  }
  for (const Json& output : json.at("outputs")) node.results.push_back(read_result(output));
  return node;
}

// Arguments that the file does not give have the schema's defaults.
void GraphReader::read_op(const Json& json, Node& node) {
  const c10::OperatorHandle op = find_op(node.target, node.place);
  std::map<std::string, const Json*> given;
  for (const Json& input : json.at("inputs")) given[input.at("name").get<std::string>()] = &input.at("arg");
  for (const c10::Argument& argument : op.schema().arguments()) {
    const auto found = given.find(argument.name());
    if (found != given.end()) {
      node.arguments.push_back(fitting(read_argument(*found->second, argument.type()), argument, node.target));
      given.erase(found);
      continue;
    }
    const bool is_needed = !argument.default_value() && argument.type()->kind() != c10::TypeKind::OptionalType;
    expect_file(!is_needed, "the op ", node.target, " lacks its argument '", argument.name(), "'");
    node.arguments.push_back({argument.default_value() ? *argument.default_value() : c10::IValue()});
  }
  if (!given.empty()) {
    throw ConfigError("gives the op " + one_line(node.target) + " the argument '" + one_line(given.begin()->first) +
                      "', which it does not have in this LibTorch; export with the version of PyTorch that duet was "
                      "built for, or an older one");
  }
  node.op = op;
  node.is_type_assertion = op.schema().name() == "aten::_assert_tensor_metadata";
}

Argument GraphReader::read_argument(const Json& json, const c10::TypePtr& type) {
  const auto [kind, found] = tagged(json);
  const Json& value = *found;
  const auto named = [&](const Json& name) { return Argument{Slot{slot(name.get<std::string>()), wanted(type)}}; };
  if (kind == "as_tensor") return named(value.at("name"));
  if (kind == "as_none") return {c10::IValue()};
  if (kind == "as_int") return constant(value.get<int64_t>(), type);
  if (kind == "as_float") return constant(number_of(value), type);
  if (kind == "as_bool") return constant(value.get<bool>(), type);
  if (kind == "as_complex") {
    return constant(c10::complex<double>(number_of(value.at("real")), number_of(value.at("imag"))), type);
  }
  if (kind == "as_string") return {c10::IValue(value.get<std::string>())};
  if (kind == "as_scalar_type") return {c10::IValue(static_cast<int64_t>(pt2_dtype(value.get<int64_t>())))};
  if (kind == "as_layout") return {layout_of(value.get<int64_t>())};
  if (kind == "as_memory_format") return {memory_format_of(value.get<int64_t>())};
  if (kind == "as_device") return {device_of(value)};
  if (kind == "as_graph") return read_graph(value);
  if (kind == "as_sym_int" || kind == "as_sym_float" || kind == "as_sym_bool") {
    const auto [tag, number] = tagged(value);
    return tag == "as_name" ? named(*number) : read_argument(value, type);
  }
  if (kind == "as_optional_tensor") return read_argument(value, type);
  if (value.is_array()) return read_list(value, type);
  throw ConfigError("has an argument of the kind " + one_line(kind) + ", which cannot be trained here");
}

// Of plain values, names, or tagged ones.
Argument GraphReader::read_list(const Json& list, const c10::TypePtr& type) {
  List read{element_of(type), {}};
  for (const Json& item : list) {
    if (item.is_array()) {
      read.items.push_back(read_list(item, read.element));
    } else if (item.is_object() && item.contains("name")) {
      read.items.push_back({Slot{slot(item.at("name").get<std::string>())}});
    } else if (item.is_object() && item.contains("as_name")) {
      read.items.push_back({Slot{slot(item.at("as_name").get<std::string>()), wanted(read.element)}});
    } else if (item.is_object()) {
      read.items.push_back(read_argument(item, read.element));
    } else if (item.is_boolean()) {
      read.items.push_back(constant(item.get<bool>(), read.element));
    } else if (item.is_number_integer()) {
      read.items.push_back(constant(item.get<int64_t>(), read.element));
    } else if (item.is_string() && read.element->kind() == c10::TypeKind::StringType) {
      read.items.push_back({c10::IValue(item.get<std::string>())});
    } else {
      read.items.push_back(constant(number_of(item), read.element));
    }
  }
  return folded(std::move(read));
}

Argument GraphReader::read_graph(const Json& json) {
  expect_file(depth_ < kMaxGraphs, "its graphs are nested too deep, expected at most ", kMaxGraphs, " levels");
  return {std::make_shared<const Graph>(GraphReader(modules_, depth_ + 1).read(json.at("graph")))};
}

Result GraphReader::read_result(const Json& json) {
  const Argument argument = read_argument(json, nullptr);
  const auto slot_of = [](const Argument& item) {
    const auto* slot = std::get_if<Slot>(&item.value);
    return slot == nullptr ? std::nullopt : std::optional(slot->index);
  };
  const auto* list = std::get_if<List>(&argument.value);
  if (list == nullptr) return {false, {slot_of(argument)}};
  Result result{true, {}};
  for (const Argument& item : list->items) result.slots.push_back(slot_of(item));
  return result;
}

namespace {

void add_slots(const Argument& argument, std::vector<std::size_t>& slots) {
  if (const auto* slot = std::get_if<Slot>(&argument.value)) slots.push_back(slot->index);
  if (const auto* list = std::get_if<List>(&argument.value)) {
    for (const Argument& item : list->items) add_slots(item, slots);
  }
}

}  // namespace

void GraphReader::check_order(const Graph& graph) {
  std::vector<bool> is_known(graph.slots, false);
  std::vector<std::size_t> read;
  const auto check = [&] {
    const bool fits = std::ranges::all_of(read, [&](std::size_t slot) { return is_known[slot]; });
    expect_file(fits, "its graph reads a value before it exists");
    read.clear();
  };
  for (const Slot& input : graph.inputs) is_known[input.index] = true;
  for (const Node& node : graph.nodes) {
    for (const Argument& argument : node.arguments) add_slots(argument, read);
    check();
    for (const Result& result : node.results) {
      for (const auto& slot : result.slots) {
        if (slot) is_known[*slot] = true;
      }
    }
  }
  for (const Argument& output : graph.outputs) add_slots(output, read);
  check();
}

// As Python's code for a graph forgets values, so that a step holds no more memory than eager code would.
void GraphReader::find_last_reads(Graph& graph) {
  std::vector<std::size_t> slots;
  for (const Argument& output : graph.outputs) add_slots(output, slots);
  graph.read.insert(slots.begin(), slots.end());
  std::set<std::size_t> known = graph.read;  // to later nodes
  for (auto node = graph.nodes.rbegin(); node != graph.nodes.rend(); ++node) {
    slots.clear();
    for (const Argument& argument : node->arguments) add_slots(argument, slots);
    graph.read.insert(slots.begin(), slots.end());
    for (const Result& result : node->results) {
      for (const auto& slot : result.slots) {
        if (slot) slots.push_back(*slot);
      }
    }
    for (const std::size_t slot : slots) {
      if (known.insert(slot).second) node->last_read.push_back(slot);
    }
  }
}

}  // namespace duet::exported
