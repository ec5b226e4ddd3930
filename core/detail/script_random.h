#pragma once

#include <string>
#include <vector>
#include <torch/csrc/jit/ir/ir.h>

namespace duet {

// The ops of a script that draw random numbers in evaluation too, each as "aten::dropout in layers.dropout": those that
// train() and eval() do not reach, such as a dropout that was traced in training mode. What stands in a branch is left
// out, since the script decides about it. `graph` is one whose calls are inlined.
std::vector<std::string> always_random(const torch::jit::Graph& graph);

}  // namespace duet
