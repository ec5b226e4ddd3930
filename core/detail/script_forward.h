#pragma once

#include <memory>
#include <string>
#include <vector>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/runtime/interpreter.h>

namespace duet {

class FileModel;

// A scripted or traced module with a forward(). Throws ConfigError in the name of `who` if the file is none.
torch::jit::Module load_script(const std::string& path, const std::string& who);

// forward() of a TorchScript module, run op by op. LibTorch's own executor watches the first calls and rewrites the
// graph for later ones, so results may depend on how often a module was called; here the graph is prepared once, and
// the module's own is left as it is. Forked work runs in place, so that random ops keep their order.
class ScriptForward {
 public:
  // `who` runs it, and `path` is the module's file: for errors.
  ScriptForward(const torch::jit::Module& module, std::string who, std::string path);

  // The tensor it returns, or the first of a tuple. Throws StepError with the script's own line if it fails.
  at::Tensor operator()(std::vector<c10::IValue> inputs) const;

 private:
  c10::IValue run(std::vector<c10::IValue> inputs) const;

  torch::jit::Module module_;  // shares its tensors with the original
  std::string who_, path_;
  torch::jit::Code code_;
};

// The file's module as a model. Throws as load_script does.
std::unique_ptr<FileModel> make_script_model(const std::string& path, const std::string& who);

}  // namespace duet
