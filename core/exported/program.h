#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

// What torch.export's graph says, ready to run.

namespace duet::exported {

struct Graph;

// A value of the graph: what an input or a node gave.
struct Slot {
  std::size_t index = 0;
  // What the op's schema asks for where Python passes a number: a tensor, or a float.
  enum class As { kItself, kTensor, kFloat } as = As::kItself;
};

struct Argument;
struct List {
  c10::TypePtr element;
  std::vector<Argument> items;
};
struct Argument {
  std::variant<c10::IValue, Slot, List, at::Device, std::shared_ptr<const Graph>> value;
};

// Where a node's results go: a slot each, none for what nobody reads; a list is one result with a slot for each item.
struct Result {
  bool is_list = false;
  std::vector<std::optional<std::size_t>> slots;
};

class Interpreter;
struct Node;
// Python's arithmetic on sizes: takes the arguments, gives one value.
using SymbolicOp = c10::IValue (*)(const torch::jit::Stack& arguments);
// An op that runs graphs: takes the arguments but for the graphs, gives its results.
using HigherOrderOp = std::vector<c10::IValue> (*)(Interpreter& interpreter, const Node& node,
                                                   torch::jit::Stack arguments);

struct Node {
  std::string target;  // "torch.ops.aten.linear.default"
  std::variant<std::monostate, c10::OperatorHandle, SymbolicOp, HigherOrderOp> op;
  std::vector<Argument> arguments;  // of an op all that its schema has, in order
  std::vector<Result> results;
  std::vector<std::size_t> last_read;  // slots that no later node reads
  std::size_t module = 0;              // its place in Program::modules
  std::string place;                   // the user's own line: "net.py:8 in forward"

  // In evaluation mode: other arguments, by their places; or the argument that the op gives, instead of writing to it,
  // where that is a buffer.
  std::vector<std::pair<std::size_t, c10::IValue>> in_evaluation;
  std::optional<std::size_t> given_in_evaluation;
  bool is_type_assertion = false;
};

struct Graph {
  std::vector<Slot> inputs;
  std::vector<Node> nodes;
  std::vector<Argument> outputs;
  std::size_t slots = 0;
  std::set<std::size_t> read;  // slots that a node or an output reads

  // The graphs that a node runs.
  static std::vector<std::shared_ptr<const Graph>> of(const Node& node);
};

// A tensor of the model that the graph takes as an input.
struct ModelTensor {
  enum class Kind { kParameter, kBuffer, kConstant } kind;
  std::string name;  // "layers.0.weight"
  std::size_t slot;
  at::ScalarType dtype;  // dtype and sizes as the graph's ops expect them
  std::vector<std::string> sizes;
};

struct UserInput {
  std::string name;    // "x", "batch.image"
  std::string python;  // as guards write it: "L['x']"
  std::size_t slot;
  bool is_tensor = true;             // otherwise a constant of the export, which stays as it was
  std::vector<std::string> sizes{};  // of a tensor: "8", or an expression
};

struct Module {
  std::string path, type;  // "layers.0", "Linear"
};

struct Range {
  std::string expression;  // "s0", "2*s0"
  std::optional<int64_t> min, max;
};

struct Program {
  Graph graph;
  std::vector<ModelTensor> tensors;
  std::vector<UserInput> inputs;
  std::vector<std::string> outputs;  // "logits", "aux.0"; empty for the only one
  std::vector<Module> modules;       // the whole model first
  std::vector<Range> ranges;
  std::vector<std::string> guards;
  bool is_decomposed = false;  // for inference
  bool is_functional = false;  // gives new values of buffers as results
};

// The program in the JSON of torch.export.save. Throws MalformedFile for what is wrong with it, ConfigError for ops
// that this process does not have or that cannot be trained, with the user's Python line.
Program read_program(const std::string& text);

}  // namespace duet::exported
