#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>
#include <torch/nn/module.h>
#include "core/detail/file_task.h"
#include "core/detail/script_forward.h"
#include "core/script_task.h"
#include "io/file_io.h"
#include "io/plain_tensor.h"
#include "io/read_file.h"
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

class ScriptModel : public FileModel {
 public:
  ScriptModel(const torch::jit::Module& module, const std::string& path, const std::string& who)
      : path_(path), script_(module), tree_(std::make_shared<ScriptTree>(module)), forward_(module, who, path) {}

  const std::shared_ptr<torch::nn::Module>& module() const override { return tree_; }
  NamedTensors parameters() const override { return items_of(script_.named_parameters()); }
  NamedTensors buffers() const override { return items_of(script_.named_buffers()); }
  NamedTensors outputs(const std::vector<at::Tensor>& inputs) const override {
    return {{"", forward_({inputs.begin(), inputs.end()})}};
  }
  std::string write(const std::string& stem, const StateDict& weights) const override {
    write_script_model(stem + ".pt", path_, weights);
    return stem + ".pt";
  }

 private:
  template <class List>
  static NamedTensors items_of(const List& list) {
    NamedTensors items;
    for (const auto& item : list) items.emplace_back(item.name, item.value);
    return items;
  }

  std::string path_;
  torch::jit::Module script_;
  std::shared_ptr<torch::nn::Module> tree_;
  ScriptForward forward_;
};

}  // namespace

std::unique_ptr<FileModel> make_script_model(const std::string& path, const std::string& who) {
  return std::make_unique<ScriptModel>(load_script(path, who), path, who);
}

void write_script_model(const std::string& path, const std::string& source, const StateDict& weights) {
  const torch::jit::Module module = load_script(source, "ScriptTask");
  NamedTensors tensors;
  for (const auto& item : module.named_parameters()) tensors.emplace_back(item.name, item.value);
  for (const auto& item : module.named_buffers()) tensors.emplace_back(item.name, item.value);
  take_numbers("script", tensors, weights, /*all_are_needed=*/true);
  std::ostringstream bytes;
  module.save(bytes);
  write_file("script", [&] { file_io::replace_file(path, bytes.str()); });
}

ScriptModule::ScriptModule(const std::string& path) : model_(make_script_model(path, "ScriptModule")) {}

const std::shared_ptr<torch::nn::Module>& ScriptModule::module() const { return model_->module(); }

at::Tensor ScriptModule::run(const std::vector<at::Tensor>& inputs) const {
  return model_->outputs(inputs).front().second;
}

}  // namespace duet
