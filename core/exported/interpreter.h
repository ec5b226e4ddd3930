#pragma once

#include <vector>
#include <ATen/core/ivalue.h>
#include "core/exported/program.h"

namespace torch::nn {
class Module;
}

namespace duet::exported {

// Runs a graph op by op, as Python runs the module of an ExportedProgram.
class Interpreter {
 public:
  // `modules`: the program's, whose training flags decide. `buffers`: the model's. `device`: where the program's
  // tensors are; ops that make tensors make them there, whatever device the graph was exported on.
  Interpreter(const std::vector<const torch::nn::Module*>& modules, const std::vector<at::Tensor>& buffers,
              at::Device device)
      : modules_(modules), buffers_(buffers), device_(device) {}

  // The graph's outputs. Throws what an op throws.
  std::vector<c10::IValue> run(const Graph& graph, std::vector<c10::IValue> inputs);
  // After that: the node of the op. Null before any.
  const Node* last_node() const { return last_node_; }

 private:
  using Values = std::vector<c10::IValue>;
  c10::IValue value_of(const Argument& argument, const Values& values) const;
  void run_node(const Node& node, Values& values);
  std::vector<c10::IValue> call(const Node& node, torch::jit::Stack arguments);

  // The argument that the op gives in evaluation instead of writing to it: null if it is no buffer, but a copy of one.
  const c10::IValue* kept_buffer(const Node& node, const torch::jit::Stack& arguments) const;

  const std::vector<const torch::nn::Module*>& modules_;
  const std::vector<at::Tensor>& buffers_;
  at::Device device_;
  const Node* last_node_ = nullptr;
};

}  // namespace duet::exported
