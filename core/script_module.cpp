#include <memory>
#include <string>
#include <utility>
#include <vector>
#include <torch/nn/module.h>
#include "core/detail/script_forward.h"
#include "core/script_task.h"
#include "optim/groups/detail/described_layer.h"

namespace duet {

namespace {

// What a module of TorchScript holds, as LibTorch's modules hold it: the tensors are the same, so an optimizer, a
// checkpoint and to() that know the one reach the other, and rules for norms find them. Training flags are handed on.
class ScriptTree : public torch::nn::Module, public DescribedLayer {
 public:
  explicit ScriptTree(const torch::jit::Module& module) : module_(module), info_(modules_of(module).front()) {
    for (const auto& item : module.named_parameters(/*recurse=*/false)) {
      register_parameter(item.name, item.value, item.value.requires_grad());
    }
    for (const auto& item : module.named_buffers(/*recurse=*/false)) register_buffer(item.name, item.value);
    for (const auto& item : module.named_children()) {
      register_module(item.name, std::make_shared<ScriptTree>(item.value));
    }
    train(module.is_training());
  }

  void train(bool on) override {
    torch::nn::Module::train(on);  // calls those below, too
    if (module_.type()->findAttributeSlot("training")) module_.setattr("training", on);
  }

  ModuleInfo info() const override { return info_; }

 private:
  torch::jit::Module module_;
  ModuleInfo info_;
};

}  // namespace

struct ScriptModule::Parts {
  explicit Parts(const std::string& path) : Parts(load_script(path, "ScriptModule"), path) {}
  Parts(const torch::jit::Module& module, const std::string& path)
      : tree(std::make_shared<ScriptTree>(module)), forward(module, "ScriptModule", path) {}

  std::shared_ptr<torch::nn::Module> tree;
  ScriptForward forward;
};

ScriptModule::ScriptModule(const std::string& path) : parts_(std::make_shared<const Parts>(path)) {}

const std::shared_ptr<torch::nn::Module>& ScriptModule::module() const { return parts_->tree; }

at::Tensor ScriptModule::run(const std::vector<at::Tensor>& inputs) const {
  return parts_->forward({inputs.begin(), inputs.end()});
}

}  // namespace duet
