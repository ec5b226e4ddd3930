#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>
#include <nlohmann/json.hpp>
#include "core/exported/program.h"

namespace duet::exported {

using Json = nlohmann::ordered_json;

// The modules that nodes belong to, by path.
class ModuleList {
 public:
  ModuleList() { of("", ""); }
  // The place of the module called `path`, which is new or known. A type that was unknown is kept.
  std::size_t of(const std::string& path, const std::string& type);
  // That of a node's "nn_module_stack": "L__self__,,Net;L__self__fc,fc,torch.nn.modules.linear.Linear".
  std::size_t innermost(const std::string& stack);

  std::vector<Module> list;

 private:
  std::map<std::string, std::size_t> by_path_;
};

// Reads a graph of schema.py. Graphs within it have values of their own.
class GraphReader {
 public:
  explicit GraphReader(ModuleList& modules, int depth = 0) : modules_(modules), depth_(depth) {}

  Graph read(const Json& json);
  // The slot of the value called so, which is new or known.
  std::size_t slot(const std::string& name);
  std::size_t slot_count() const { return slots_.size(); }

 private:
  Node read_node(const Json& json);
  void read_op(const Json& json, Node& node);
  // `type`: what the op's schema asks for; null: none does.
  Argument read_argument(const Json& json, const c10::TypePtr& type);
  Argument read_list(const Json& list, const c10::TypePtr& type);
  Argument read_graph(const Json& json);
  Result read_result(const Json& json);
  static void check_order(const Graph& graph);
  static void find_last_reads(Graph& graph);

  ModuleList& modules_;
  int depth_;
  std::map<std::string, std::size_t> slots_;
};

// The only pair of a tagged union, {"as_int": 3}. Throws MalformedFile for anything else.
std::pair<std::string, const Json*> tagged(const Json& json);

}  // namespace duet::exported
