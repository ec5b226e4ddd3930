#include "core/script_task.h"
#include <utility>
#include <torch/csrc/jit/api/module.h>
#include "core/detail/file_task.h"
#include "core/detail/script_forward.h"
#include "optim/groups/detail/described_layer.h"

namespace duet {

namespace {

// "LayerNorm" from "__torch__.torch.nn.modules.normalization.___torch_mangle_3.LayerNorm".
std::string type_of(const torch::jit::Module& module) {
  const auto& name = module.type()->name();
  return name ? name->name() : std::string();
}

at::Tensor weight_of(const torch::jit::Module& module) {
  const bool has_weight = module.hasattr("weight") && module.attr("weight").isTensor();
  return has_weight ? module.attr("weight").toTensor() : at::Tensor();
}

}  // namespace

std::vector<ModuleInfo> modules_of(const torch::jit::Module& module) {
  std::vector<ModuleInfo> modules;
  for (const auto& item : module.named_modules()) {
    std::string type = type_of(item.value);
    const ModuleKind kind = kind_of(type, weight_of(item.value));
    modules.push_back({item.name, std::move(type), kind});
  }
  return modules;
}

const OptionFields& ScriptTaskOptions::fields() {
  using O = ScriptTaskOptions;
  return described<O>("ScriptTask", [](const auto& add) {
    add.about(
        "A module saved by torch.jit.save: its forward() gets the tensors that inputs names, as the data gives them; "
        "with loss: none also the target, last, and returns the loss.");
    add_file_task_options<O>(add, "file written by torch.jit.save; loading it runs code from that file");
  });
}

std::unique_ptr<Task> make_script_task(const ScriptTaskOptions& options) {
  check_options(options);
  return make_file_task(make_script_model(options.path, "ScriptTask"),
                        {options.path, options.inputs, options.target, options.loss, options.ignore_index});
}

}  // namespace duet
