#pragma once

#include <string>
#include "core/exported/program.h"

namespace duet::exported {

// The op of LibTorch or of a loaded library called "torch.ops.aten.linear.default". Throws ConfigError with the user's
// Python line, `place`, for one that is not there or does more than compute.
c10::OperatorHandle find_op(const std::string& target, const std::string& place);

// Null if there is none of this name: of a graph ("_operator.add", "torch.ops.aten.sym_size.int"), or of a text that
// Python or SymPy writes ("+", "FloorDiv"). Ops take two numbers, or one, and throw what is wrong with them.
SymbolicOp symbolic_op(const std::string& name);

// Null if there is none of this name ("torch.ops.higher_order.cond").
HigherOrderOp higher_order_op(const std::string& target);

// A Python number as the 0-dim tensor that ops make of it, whose dtype gives way to those of other tensors.
at::Tensor wrapped_number(const c10::IValue& number);

// Says in the nodes of a graph in training mode what their ops do in evaluation.
void mark_training_ops(Graph& graph);
// The ops that training mode turns on and evaluation mode off, and those that draw random numbers in both: each as
// "aten.dropout in layers.0 (net.py:8 in forward)".
struct ModeOps {
  std::vector<std::string> switched, always_random;
};
ModeOps mode_ops(const Program& program);
// Whether there are ops with a training flag, and all of them have it off.
bool is_in_evaluation_mode(const Program& program);

}  // namespace duet::exported
