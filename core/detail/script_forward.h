#pragma once

#include <vector>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/runtime/interpreter.h>

namespace duet {

// forward() of a TorchScript module, run op by op. LibTorch's own executor watches the first calls and rewrites the
// graph for later ones, so results may depend on how often a module was called; here the graph is prepared once, and
// the module's own is left as it is. Forked work runs in place, so that random ops keep their order.
class ScriptForward {
 public:
  explicit ScriptForward(const torch::jit::Module& module);

  c10::IValue operator()(std::vector<c10::IValue> inputs) const;

 private:
  torch::jit::Module module_;  // shares its tensors with the original
  torch::jit::Code code_;
};

}  // namespace duet
