#include "core/script_task.h"
#include <algorithm>
#include <array>
#include <map>
#include <utility>
#include <vector>
#include <torch/csrc/jit/api/module.h>
#include "base/error.h"
#include "core/detail/script_forward.h"
#include "core/task.h"
#include "optim/groups/param_group.h"

namespace duet {

namespace {

// "LayerNorm" from "__torch__.torch.nn.modules.normalization.___torch_mangle_3.LayerNorm".
std::string type_of(const torch::jit::Module& module) {
  const auto& name = module.type()->name();
  return name ? name->name() : std::string();
}

ModuleKind kind_of(const torch::jit::Module& module, const std::string& type) {
  static constexpr std::array kNorms = {"BatchNorm", "InstanceNorm", "GroupNorm", "LayerNorm"};
  const auto holds = [&](const char* part) { return type.find(part) != std::string::npos; };
  if (std::any_of(kNorms.begin(), kNorms.end(), holds)) return ModuleKind::kNorm;
  if (holds("DeformConv2d")) return ModuleKind::kDeformableConv2d;
  if (!holds("Conv2d")) return ModuleKind::kOther;
  // A weight is [out_channels, in_channels / groups, height, width]. The numbers themselves are gone from a traced
  // module.
  const bool has_weight = module.hasattr("weight") && module.attr("weight").isTensor();
  const at::Tensor weight = has_weight ? module.attr("weight").toTensor() : at::Tensor();
  const bool depthwise = weight.defined() && weight.dim() == 4 && weight.size(1) == 1;
  return depthwise ? ModuleKind::kDepthwiseConv2d : ModuleKind::kConv2d;
}

}  // namespace

std::vector<ModuleInfo> modules_of(const torch::jit::Module& module) {
  std::vector<ModuleInfo> modules;
  for (const auto& item : module.named_modules()) {
    std::string type = type_of(item.value);
    const ModuleKind kind = kind_of(item.value, type);
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
    add("path", &O::path, "file written by torch.jit.save; loading it runs code from that file").needed();
    add("inputs", &O::inputs, "batch tensors passed to forward(), in order; empty: all but target");
    add("target", &O::target, "batch tensor that the loss compares with");
    add("ignore_index", &O::ignore_index, "class in the target that does not count");
    add_loss_options(add, [](auto member) { return [member](O& o) -> auto& { return o.loss.*member; }; },
                     {"cross_entropy", "focal", "dice", "mse", "l1", "huber", "bce", "none"});
  });
}

namespace {

class ScriptTask : public Task {
 public:
  explicit ScriptTask(ScriptTaskOptions options)
      : options_(std::move(options)),
        module_(load_script(options_.path, "ScriptTask")),
        forward_(module_, "ScriptTask", options_.path) {
    check_options(options_);
  }

  NamedTensors named_parameters() const override { return deduplicated(items_of(module_.named_parameters())); }
  NamedTensors named_buffers() const override { return deduplicated(items_of(module_.named_buffers())); }
  std::map<std::string, std::string> tied_names() const override {
    return aliases_of(items_of(module_.named_parameters()), items_of(module_.named_buffers()));
  }
  void train(bool on) override {
    module_.train(on);
    for (torch::jit::Module held : held_) held.train(false);
  }
  std::vector<bool> training_flags() const override { return {module_.is_training()}; }
  void set_training_flags(const std::vector<bool>& flags) override { train(flags.front()); }
  void hold_in_evaluation(const std::vector<std::string>& modules) override {
    for (const auto& item : module_.named_modules()) {
      if (std::find(modules.begin(), modules.end(), item.name) != modules.end()) held_.push_back(item.value);
    }
  }
  void to(at::Device device) override { module_.to(device); }

  std::vector<ModuleInfo> modules() const override { return modules_of(module_); }

  double weight(const Batch& batch) const override {
    if (returns_loss() || !batch.has(options_.target)) return Task::weight(batch);
    return loss_weight(options_.loss, batch[options_.target], {.ignored = options_.ignore_index});
  }

  StepOutput training_step(const Batch& batch) override {
    const at::Tensor output = forward(batch);
    StepOutput step{loss(output, batch), {}};
    if (!returns_loss()) step.outputs.emplace_back("prediction", output);
    return step;
  }

  NamedTensors predict(const Batch& batch) override { return {{"prediction", forward(batch)}}; }

 private:
  template <class List>
  static NamedTensors items_of(const List& list) {
    NamedTensors items;
    for (const auto& item : list) items.emplace_back(item.name, item.value);
    return items;
  }

  bool returns_loss() const { return options_.loss.loss == "none"; }

  at::Tensor forward(const Batch& batch) {
    std::vector<c10::IValue> inputs;
    if (options_.inputs.empty()) {
      for (const auto& [name, tensor] : batch.items()) {
        if (name != options_.target) inputs.emplace_back(tensor);
      }
    }
    for (const std::string& name : options_.inputs) inputs.emplace_back(item(batch, name));
    if (returns_loss() && batch.has(options_.target)) inputs.emplace_back(batch[options_.target]);
    return forward_(std::move(inputs));
  }

  const at::Tensor& item(const Batch& batch, const std::string& name) const {
    try {
      return batch[name];
    } catch (const DataError& error) {
      throw DataError(error.what() + std::string(" (model.inputs and model.target of '") + options_.path + "')");
    }
  }

  at::Tensor loss(const at::Tensor& output, const Batch& batch) const {
    if (returns_loss()) return output;
    const at::Tensor& target = item(batch, options_.target);
    const bool is_tokens = output.dim() == 3 && !target.is_floating_point() &&
                           target.sizes() == output.sizes().slice(0, 2);  // [N, T, C]: language models
    try {
      return is_tokens ? loss_of(options_.loss, output.flatten(0, 1), target.flatten(), options_.ignore_index)
                       : loss_of(options_.loss, output, target, options_.ignore_index);
    } catch (const ConfigError& error) {
      throw ConfigError(error.what() + std::string(" (model.loss, model.inputs and model.target of '") + options_.path +
                        "')");
    }
  }

  ScriptTaskOptions options_;
  torch::jit::Module module_;
  ScriptForward forward_;
  std::vector<torch::jit::Module> held_;  // in evaluation mode
};

}  // namespace

std::unique_ptr<Task> make_script_task(const ScriptTaskOptions& options) {
  return std::make_unique<ScriptTask>(options);
}

}  // namespace duet
