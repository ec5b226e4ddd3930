#include "core/script_task.h"
#include <algorithm>
#include <array>
#include <map>
#include <utility>
#include <vector>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/mse_loss.h>
#include <c10/util/StringUtil.h>
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
        "A module saved by torch.jit.save: its forward() gets the tensors that inputs names, as the data gives them.");
    add("path", &O::path, "file written by torch.jit.save; loading it runs code from that file").needed();
    add("inputs", &O::inputs, "batch tensors passed to forward(), in order; empty: all but target");
    add("target", &O::target, "batch tensor that the loss compares with");
    add("loss", &O::loss, "none: forward() returns it").one_of({"cross_entropy", "mse", "none"});
  });
}

namespace {

class ScriptTask : public Task {
 public:
  explicit ScriptTask(ScriptTaskOptions options)
      : options_(std::move(options)),
        module_(load_script(options_.path, "ScriptTask")),
        forward_(module_, "ScriptTask", options_.path) {
    require<ConfigError>(options_.loss == "cross_entropy" || options_.loss == "mse" || options_.loss == "none",
                         "[ScriptTask] loss is '" + options_.loss + "', expected cross_entropy, mse or none");
  }

  NamedTensors named_parameters() const override { return each_once(items_of(module_.named_parameters())); }
  NamedTensors named_buffers() const override { return each_once(items_of(module_.named_buffers())); }
  std::map<std::string, std::string> tied_names() const override {
    return further_names(items_of(module_.named_parameters()), items_of(module_.named_buffers()));
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

  // Both losses are means over the target's elements: samples, tokens or pixels, of which cross entropy ignores some.
  double weight(const Batch& batch) const override {
    if (options_.loss == "none" || !batch.contains(options_.target)) return Task::weight(batch);
    const at::Tensor& target = batch[options_.target];
    return static_cast<double>(options_.loss == "cross_entropy" ? counted_targets(target) : target.numel());
  }

  StepOutput training_step(const Batch& batch) override {
    const at::Tensor output = forward(batch);
    StepOutput step{loss(output, batch), {}};
    if (options_.loss != "none") step.outputs.emplace_back("prediction", output);
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

  at::Tensor forward(const Batch& batch) {
    std::vector<c10::IValue> inputs;
    if (options_.inputs.empty()) {
      for (const auto& [name, tensor] : batch.items()) {
        if (name != options_.target) inputs.emplace_back(tensor);
      }
    }
    for (const std::string& name : options_.inputs) inputs.emplace_back(item(batch, name));
    if (options_.loss == "none" && batch.contains(options_.target)) inputs.emplace_back(batch[options_.target]);
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
    if (options_.loss == "none") return output;
    const at::Tensor& target = item(batch, options_.target);
    if (options_.loss == "mse") {
      check_shape(output.sizes() == target.sizes(), output, target, "equal shapes");
      return at::mse_loss(output, target);
    }
    if (output.dim() == 3 && target.dim() == 2 && output.size(0) == target.size(0) &&
        output.size(1) == target.size(1)) {
      return at::cross_entropy_loss(output.flatten(0, 1), target.flatten());  // [N, T, C]: language models
    }
    check_shape(output.dim() >= 2 && output.dim() == target.dim() + 1 && output.size(0) == target.size(0), output,
                target, "logits [N, C, ...] and classes [N, ...]");
    return at::cross_entropy_loss(output, target);
  }

  void check_shape(bool good, const at::Tensor& output, const at::Tensor& target, const char* expected) const {
    if (good) return;
    throw ConfigError(c10::str("[ScriptTask] '", options_.path, "' gave an output of shape ", output.sizes(), " for a ",
                               "'", options_.target, "' of shape ", target.sizes(), ", expected ", expected,
                               " for loss ", options_.loss, "; set model.loss, model.inputs or model.target"));
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
