#include <algorithm>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/passes/autocast.h>
#include <torch/csrc/jit/passes/constant_pooling.h>
#include <torch/csrc/jit/passes/constant_propagation.h>
#include <torch/csrc/jit/passes/inliner.h>
#include <torch/csrc/jit/passes/peephole.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/csrc/jit/runtime/interpreter.h>
#include <torch/csrc/jit/serialization/import.h>
#include <torch/nn/module.h>
#include "base/detail/op_rules.h"
#include "base/detail/text.h"
#include "base/error.h"
#include "base/log.h"
#include "core/detail/file_task.h"
#include "core/detail/user_place.h"
#include "io/file_io.h"
#include "io/file_memory.h"
#include "io/plain_tensor.h"
#include "io/read_file.h"
#include "io/zip_archive.h"
#include "optim/groups/detail/described_layer.h"

namespace duet {

namespace {

using torch::jit::Graph;

bool draws(const torch::jit::Node& node) {
  if (!node.kind().is_aten() || node.maybeSchema() == nullptr) return false;
  const auto op = c10::Dispatcher::singleton().findSchema(node.schema().operator_name());
  return op && is_random(*op);
}

// Of the first of `names` that the op has; no value for one that the script computes.
struct Input {
  bool exists = false;
  std::optional<c10::IValue> constant = std::nullopt;
};

Input input_of(const torch::jit::Node& node, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const auto index = node.schema().argumentIndexWithName(name);
    if (index) return {true, torch::jit::toIValue(node.input(static_cast<std::size_t>(*index)))};
  }
  return {};
}

// What the file says of the mode of such an op; nothing where the script decides.
std::optional<bool> fixed_mode(const torch::jit::Node& node) {
  if (!node.kind().is_aten() || node.maybeSchema() == nullptr) return std::nullopt;
  const Input mode = input_of(node, {"train", "training"});
  if (!mode.constant || !mode.constant->isBool()) return std::nullopt;
  return mode.constant->toBool();
}

bool is_always_random(const torch::jit::Node& node) {
  if (!draws(node)) return false;
  const Input mode = input_of(node, {"train", "training"});
  if (mode.exists && !(mode.constant && mode.constant->isBool() && mode.constant->toBool())) return false;
  // Of attention: 0 outside of training, and the op has no flag for it.
  const Input attention = input_of(node, {"dropout_p"});
  if (attention.exists && !attention.constant) return false;
  const Input rate = mode.exists ? input_of(node, {"p", "dropout"}) : attention;
  return !(rate.constant && rate.constant->isDouble() && rate.constant->toDouble() == 0);
}

// A batch norm that was traced in training mode.
bool always_uses_the_batch(const torch::jit::Node& node) { return !draws(node) && fixed_mode(node) == true; }

// A dropout or batch norm that was traced in evaluation mode.
bool never_trains(const torch::jit::Node& node) {
  if (fixed_mode(node) != false || input_of(node, {"hx", "hidden_size"}).exists) return false;
  const Input rate = input_of(node, {"p"});
  return !(rate.constant && rate.constant->isDouble() && rate.constant->toDouble() == 0);
}

// What stands in a branch is left out, since the script decides about it.
void collect(const torch::jit::Block& block, bool (*is_meant)(const torch::jit::Node&),
             std::vector<std::string>& found) {
  for (const torch::jit::Node* node : block.nodes()) {
    if (node->kind() != c10::prim::If) {
      for (const torch::jit::Block* inner : node->blocks()) collect(*inner, is_meant, found);
    }
    if (is_meant(*node)) found.emplace_back(node->kind().toQualString());
  }
}

// Metrics would be those of a network with holes.
void warn_of_ops(const Graph& graph, bool (*is_meant)(const torch::jit::Node&), const std::string& what) {
  std::vector<std::string> ops;
  collect(*graph.block(), is_meant, ops);
  if (!ops.empty())
    log_warning(what + ": " + join_first(ops) + "; keep train() and eval() apart with torch.jit.script");
}

// As LibTorch prepares a graph before it watches any call.
std::shared_ptr<Graph> prepare(const torch::jit::Module& module, const std::string& who, const std::string& path) {
  std::shared_ptr<Graph> graph = torch::jit::toGraphFunction(module.get_method("forward").function()).graph()->copy();
  torch::jit::Inline(*graph);
  torch::jit::PeepholeOptimize(graph, /*disable_shape_peepholes=*/true);
  torch::jit::ConstantPropagationImmutableTypes(graph);
  const std::string file = "[" + who + "] '" + path + "' ";
  warn_of_ops(*graph, is_always_random, file + "draws random numbers in evaluation too");
  warn_of_ops(*graph, always_uses_the_batch, file + "normalizes by the batch in evaluation too");
  torch::jit::Autocast(graph);
  torch::jit::ConstantPooling(graph);
  return graph;
}

// A scripted or traced module with a forward(). Throws ConfigError in the name of `who` if the file is none.
torch::jit::Module load_script(const std::string& path, const std::string& who) {
  const std::string place = "[" + who + "] ";
  if (!std::filesystem::is_regular_file(path)) {
    throw ConfigError(place + "there is no TorchScript file '" + path +
                      "'; write one with torch.jit.save, or mend the path");
  }
  const auto refuse = [&](const std::string& reason, const std::string& way_out) {
    throw ConfigError(place + "'" + path + "' is not a TorchScript archive that can be loaded (" + reason + "); " +
                      way_out);
  };
  try {
    zip_archive::verify_archive(path);  // LibTorch looks at neither sizes nor checksums
  } catch (const MalformedFile& error) {
    refuse(one_line(error.what), error.way_out == kFileMemoryWayOut ? error.way_out : "write it with torch.jit.save");
  } catch (const file_io::IoError& error) {
    refuse(error.what(), "check the path");
  }
  std::optional<torch::jit::Module> module;
  if (const auto error = caught([&] { module = torch::jit::load(path); })) {
    std::string text = text_of(error);
    text.erase(0, text.find_first_not_of('\n'));
    refuse(text.substr(0, std::min(text.find('\n'), text.find(". This is an internal"))),
           "write it with torch.jit.save");
  }
  if (!module->find_method("forward")) {
    throw ConfigError(place + "the module in '" + path + "' has no forward(); script one that has");
  }
  return *module;
}

// "mat1 and mat2 shapes cannot be multiplied (5x7 and 4x3), at net.py:6 in forward" out of what TorchScript's
// interpreter says, with the error on its last line.
std::string script_error(std::string text) {
  if (text.find("Traceback of TorchScript") == std::string::npos) return text.substr(0, text.find('\n'));
  text.erase(std::min(text.find("\nException raised from"), text.size()));
  text.erase(text.find_last_not_of('\n') + 1);
  std::string last = text.substr(text.rfind('\n') + 1);
  if (last.starts_with("RuntimeError: ")) last.erase(0, 14);
  const std::size_t original = text.find("original code");  // after the lines of the file
  const std::string place = python_place(original == std::string::npos ? text : text.substr(original));
  return last + (place.empty() ? "" : ", at " + place);
}

// "LayerNorm" from "__torch__.torch.nn.modules.normalization.___torch_mangle_3.LayerNorm".
std::string type_of(const torch::jit::Module& module) {
  const auto& name = module.type()->name();
  return name ? name->name() : std::string();
}

// What a module of TorchScript holds, as LibTorch's modules hold it: the tensors are the same, so an optimizer, a
// checkpoint and to() that know the one reach the other, and rules for norms find them. Training flags are handed on.
class ScriptTree : public DescribedLayer {
 public:
  explicit ScriptTree(const torch::jit::Module& module) : DescribedLayer(type_of(module)), module_(module) {
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

 private:
  torch::jit::Module module_;
};

// Of parameters or buffers.
template <class List>
NamedTensors items_in(const List& list) {
  NamedTensors items;
  for (const auto& item : list) items.emplace_back(item.name, item.value);
  return items;
}

std::vector<std::string> arguments_of(const torch::jit::Module& script) {
  std::vector<std::string> names;
  const auto& arguments = script.get_method("forward").function().getSchema().arguments();
  for (std::size_t i = 1; i < arguments.size(); ++i) names.push_back(arguments[i].name());
  return names;
}

// forward() is run op by op. LibTorch's own executor watches the first calls and rewrites the graph for later ones, so
// results may depend on how often a module was called; here the graph is prepared once, and the module's own is left as
// it is. Forked work runs in place, so that random ops keep their order.
class ScriptModel : public FileModel {
 public:
  ScriptModel(const std::string& path, const std::string& who)
      : path_(path),
        who_(who),
        script_(load_script(path, who)),
        names_(arguments_of(script_)),
        tree_(std::make_shared<ScriptTree>(script_)),
        graph_(prepare(script_, who, path)),
        code_(graph_, "forward") {}

  const std::shared_ptr<torch::nn::Module>& module() const override { return tree_; }
  const std::vector<std::string>& input_names() const override { return names_; }
  NamedTensors parameters() const override { return items_in(script_.named_parameters()); }
  NamedTensors buffers() const override { return items_in(script_.named_buffers()); }
  std::string write(const std::string& stem, const StateDict& weights) const override {
    write_script_model(stem + ".pt", path_, weights);
    return stem + ".pt";
  }

  void check_trainable() const override {
    if (!std::exchange(warns_, false)) return;
    warn_of_ops(*graph_, never_trains,
                "[" + who_ + "] '" + path_ + "' has ops that were traced in evaluation mode, which you may mean");
  }

  // The tensor that forward() returns, or the first of a tuple.
  NamedTensors outputs(const std::vector<at::Tensor>& inputs) const override {
    c10::IValue output;
    if (const auto error = caught([&] { output = run(inputs); })) {
      throw StepError("[" + who_ + "] forward() of '" + path_ + "' failed: " + script_error(text_of(error)));
    }
    if (output.isTuple() && !output.toTupleRef().elements().empty()) {
      output = c10::IValue(output.toTupleRef().elements()[0]);
    }
    if (!output.isTensor()) {
      throw ConfigError("[" + who_ + "] forward() of '" + path_ + "' returned " + output.tagKind() +
                        ", expected a tensor (or a tuple that begins with one)");
    }
    return {{"", output.toTensor()}};
  }

 private:
  c10::IValue run(const std::vector<at::Tensor>& inputs) const {
    const torch::jit::GraphOptimizerEnabledGuard no_rewrites(false);  // of what could not be inlined
    torch::jit::Stack stack = {script_._ivalue()};
    stack.insert(stack.end(), inputs.begin(), inputs.end());
    script_.get_method("forward").function().getSchema().checkAndNormalizeInputs(stack, {});
    torch::jit::InterpreterState(code_, [](const std::function<void()>& work) { work(); }).run(stack);
    return stack.front();
  }

  std::string path_, who_;
  torch::jit::Module script_;
  std::vector<std::string> names_;
  std::shared_ptr<torch::nn::Module> tree_;
  std::shared_ptr<Graph> graph_;
  torch::jit::Code code_;
  mutable bool warns_ = true;  // before the next training step
};

}  // namespace

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
  return make_file_task(std::make_unique<ScriptModel>(options.path, "ScriptTask"), options);
}

void write_script_model(const std::string& path, const std::string& source, const StateDict& weights) {
  const torch::jit::Module module = load_script(source, "ScriptTask");
  NamedTensors tensors = items_in(module.named_parameters());
  for (auto& buffer : items_in(module.named_buffers())) tensors.push_back(std::move(buffer));
  take_numbers("script", tensors, weights, /*all_are_needed=*/true);
  std::ostringstream bytes;
  module.save(bytes);
  write_file("script", [&] { file_io::replace_file(path, bytes.str()); });
}

ScriptModule::ScriptModule(const std::string& path) : model_(std::make_shared<ScriptModel>(path, "ScriptModule")) {}

const std::shared_ptr<torch::nn::Module>& ScriptModule::module() const { return model_->module(); }

at::Tensor ScriptModule::run(const std::vector<at::Tensor>& inputs) const {
  return model_->outputs(inputs).front().second;
}

}  // namespace duet
