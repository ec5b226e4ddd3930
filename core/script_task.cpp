#include "core/script_task.h"
#include <algorithm>
#include <array>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>
#include <ATen/ops/_local_scalar_dense_native.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/mse_loss.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/ir/alias_analysis.h>
#include <torch/csrc/jit/passes/autocast.h>
#include <torch/csrc/jit/passes/constant_pooling.h>
#include <torch/csrc/jit/passes/constant_propagation.h>
#include <torch/csrc/jit/passes/inliner.h>
#include <torch/csrc/jit/passes/peephole.h>
#include <torch/csrc/jit/runtime/custom_operator.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/csrc/jit/runtime/interpreter.h>
#include <torch/csrc/jit/serialization/import.h>
#include "base/detail/text.h"
#include "base/error.h"
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

namespace {

using torch::jit::AliasDb;
using torch::jit::Block;
using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Operator;
using torch::jit::Stack;
using torch::jit::Symbol;
using torch::jit::Value;

// A tracer writes a size as a tensor: int(width // 4) with width = x.shape[2] becomes
// aten::Int(aten::floor_divide(prim::NumToTensor(aten::size(x, 2)), 4)). aten::Int reads a tensor back, which a step
// that is captured must not do, yet this value depends on nothing but shapes. duet::size_int and its like read such a
// tensor, which lies on the host, without an op of ATen.

at::Scalar read_host(Stack& stack) {
  const at::Tensor tensor = torch::jit::pop(stack).toTensor();
  return tensor.is_cpu() && tensor.numel() == 1 ? at::native::_local_scalar_dense_cpu(tensor) : tensor.item();
}

void register_size_ops() {
  static const torch::jit::RegisterOperators registered([] {
    const auto pure = c10::AliasAnalysisKind::FROM_SCHEMA;
    std::vector<std::optional<Operator>> ops;
    ops.emplace_back(Operator(
        "duet::size_int(Tensor a) -> int",
        [](Stack& stack) { torch::jit::push(stack, read_host(stack).to<int64_t>()); }, pure));
    ops.emplace_back(Operator(
        "duet::size_float(Tensor a) -> float",
        [](Stack& stack) { torch::jit::push(stack, read_host(stack).to<double>()); }, pure));
    ops.emplace_back(Operator(
        "duet::size_scalar(Tensor a) -> Scalar", [](Stack& stack) { torch::jit::push(stack, read_host(stack)); },
        pure));
    return ops;
  }());
}

const char* size_op_for(Symbol kind) {
  if (kind == c10::aten::Int || kind == c10::aten::IntImplicit) return "duet::size_int";
  if (kind == c10::aten::Float || kind == c10::aten::FloatImplicit) return "duet::size_float";
  return kind == c10::aten::ScalarImplicit ? "duet::size_scalar" : nullptr;
}

bool is_host_type(const c10::Type& type) {
  switch (type.kind()) {
    case c10::TypeKind::IntType:
    case c10::TypeKind::FloatType:
    case c10::TypeKind::BoolType:
    case c10::TypeKind::NumberType:
    case c10::TypeKind::NoneType:
    case c10::TypeKind::StringType:
    case c10::TypeKind::DeviceObjType: return true;
    case c10::TypeKind::ListType: return is_host_type(*type.containedType(0));
    default: return false;
  }
}

// Tells values that are computed from sizes, numbers and constants alone.
class HostValues {
 public:
  explicit HostValues(Graph& graph) : aliases_(graph.shared_from_this()) {}

  bool contain(const Value* value) {
    const auto [known, fresh] = known_.emplace(value, false);
    if (!fresh) return known->second;
    const bool result = is_host_type(*value->type()) || computed_on_host(value);
    known_[value] = result;
    return result;
  }

 private:
  bool computed_on_host(const Value* value) {
    const Node* node = value->node();
    if (!value->type()->isSubtypeOf(*c10::TensorType::get()) || aliases_.hasWriters(value)) return false;
    if (node->kind() == c10::prim::NumToTensor || node->kind() == c10::prim::Constant) return true;
    if (!node->kind().is_aten() || !node->blocks().empty() || node->hasSideEffects() || node->isNondeterministic()) {
      return false;
    }
    return std::all_of(node->inputs().begin(), node->inputs().end(),
                       [this](const Value* input) { return contain(input); });
  }

  AliasDb aliases_;
  std::unordered_map<const Value*, bool> known_;
};

void read_sizes_on_host(Block* block, HostValues& host) {
  for (auto next = block->nodes().begin(); next != block->nodes().end();) {
    Node* node = *next++;
    for (Block* inner : node->blocks()) read_sizes_on_host(inner, host);
    const char* replacement = size_op_for(node->kind());
    if (replacement == nullptr || node->inputs().size() != 1 || is_host_type(*node->input()->type())) continue;
    if (!host.contain(node->input())) continue;
    node->replaceWithNewSymbol(Symbol::fromQualString(replacement));
    node->destroy();
  }
}

// As LibTorch prepares a graph before it watches any call.
std::shared_ptr<Graph> prepare(const torch::jit::Module& module) {
  std::shared_ptr<Graph> graph = torch::jit::toGraphFunction(module.get_method("forward").function()).graph()->copy();
  torch::jit::Inline(*graph);
  torch::jit::PeepholeOptimize(graph, /*disable_shape_peepholes=*/true);
  torch::jit::ConstantPropagationImmutableTypes(graph);
  torch::jit::Autocast(graph);
  torch::jit::ConstantPooling(graph);
  register_size_ops();
  HostValues host(*graph);
  read_sizes_on_host(graph->block(), host);
  return graph;
}

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

ScriptForward::ScriptForward(const torch::jit::Module& module) : module_(module), code_(prepare(module), "forward") {}

c10::IValue ScriptForward::operator()(std::vector<c10::IValue> inputs) const {
  const torch::jit::GraphOptimizerEnabledGuard no_rewrites(false);  // of what could not be inlined
  Stack stack = {module_._ivalue()};
  for (c10::IValue& input : inputs) stack.push_back(std::move(input));
  module_.get_method("forward").function().getSchema().checkAndNormalizeInputs(stack, {});
  torch::jit::InterpreterState(code_, [](const std::function<void()>& work) { work(); }).run(stack);
  return stack.front();
}

}  // namespace

const OptionFields& ScriptTaskOptions::fields() {
  using O = ScriptTaskOptions;
  return described<O>("ScriptTask", [](const auto& add) {
    add("path", &O::path, "file written by torch.jit.save; loading it runs code from that file").needed();
    add("inputs", &O::inputs, "batch tensors passed to forward(), in order; empty: all but target");
    add("target", &O::target, "batch tensor that the loss compares with");
    add("loss", &O::loss, "none: forward() returns it").one_of({"cross_entropy", "mse", "none"});
  });
}

namespace {

class ScriptTask : public Task {
 public:
  explicit ScriptTask(ScriptTaskOptions options) : options_(std::move(options)), module_(load(options_.path)) {
    require<ConfigError>(options_.loss == "cross_entropy" || options_.loss == "mse" || options_.loss == "none",
                         "[ScriptTask] loss is '" + options_.loss + "', expected cross_entropy, mse or none");
    if (!module_.find_method("forward")) {
      throw ConfigError("[ScriptTask] the module in '" + options_.path + "' has no forward(); script one that has");
    }
    forward_.emplace(module_);
  }

  NamedTensors named_parameters() const override { return each_once(items_of(module_.named_parameters())); }
  NamedTensors named_buffers() const override { return each_once(items_of(module_.named_buffers())); }
  std::map<std::string, std::string> tied_names() const override {
    return further_names(items_of(module_.named_parameters()), items_of(module_.named_buffers()));
  }
  void train(bool on) override { module_.train(on); }
  std::vector<bool> training_flags() const override { return {module_.is_training()}; }
  void set_training_flags(const std::vector<bool>& flags) override { module_.train(flags.front()); }
  void to(at::Device device) override { module_.to(device); }

  std::vector<ModuleInfo> modules() const override { return modules_of(module_); }

  // Both losses are means over the target's elements: samples, tokens or pixels, of which cross entropy ignores some.
  double weight(const Batch& batch) const override {
    if (options_.loss == "none" || !batch.contains(options_.target)) return Task::weight(batch);
    const at::Tensor& target = batch[options_.target];
    return static_cast<double>(options_.loss == "cross_entropy" ? counted_targets(target) : target.numel());
  }

  StepOutput training_step(const Batch& batch) override { return {loss(forward(batch), batch), {}}; }

  NamedTensors validation_step(const Batch& batch) override {
    const at::Tensor output = forward(batch);
    NamedTensors outputs = {{"loss", loss(output, batch)}};
    if (options_.loss != "none") outputs.emplace_back("prediction", output);
    return outputs;
  }

  NamedTensors predict(const Batch& batch) override { return {{"prediction", forward(batch)}}; }

 private:
  static torch::jit::Module load(const std::string& path) {
    if (!std::filesystem::is_regular_file(path)) {
      throw ConfigError("[ScriptTask] there is no TorchScript file '" + path +
                        "'; write one with torch.jit.save, or mend the path");
    }
    try {
      return torch::jit::load(path);
    } catch (const std::exception& error) {
      const std::string text = error.what();
      throw ConfigError("[ScriptTask] '" + path + "' is not a TorchScript archive that can be loaded (" +
                        text.substr(0, std::min(text.find('\n'), text.find(". This is an internal"))) +
                        "); write it with torch.jit.save");
    }
  }

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
    c10::IValue output;
    if (const auto error = caught([&] { output = (*forward_)(std::move(inputs)); })) {
      throw ConfigError("[ScriptTask] forward() of '" + options_.path + "' failed: " + first_lines(text_of(error)));
    }
    if (output.isTuple() && !output.toTupleRef().elements().empty())
      output = c10::IValue(output.toTupleRef().elements()[0]);
    if (!output.isTensor()) {
      throw ConfigError("[ScriptTask] forward() of '" + options_.path + "' returned " + output.tagKind() +
                        ", expected a tensor (or a tuple that begins with one)");
    }
    return output.toTensor();
  }

  const at::Tensor& item(const Batch& batch, const std::string& name) const {
    try {
      return batch[name];
    } catch (const DataError& error) {
      throw DataError(error.what() + std::string(" (model.inputs and model.target of '") + options_.path + "')");
    }
  }

  // An error inside a script comes with the script's own lines, which help; the C++ frames do not.
  static std::string first_lines(const std::string& text) {
    const std::size_t cut = text.find("\nException raised from");
    return text.substr(0, std::min<std::size_t>(cut, 1500));
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
  std::optional<ScriptForward> forward_;
};

}  // namespace

std::unique_ptr<Task> make_script_task(const ScriptTaskOptions& options) {
  return std::make_unique<ScriptTask>(options);
}

}  // namespace duet
