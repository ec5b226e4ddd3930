#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>
#include <c10/util/StringUtil.h>
#include "base/detail/text.h"
#include "base/error.h"
#include "base/log.h"
#include "core/detail/file_task.h"
#include "core/exported/input_shapes.h"
#include "core/exported/interpreter.h"
#include "core/exported/layers.h"
#include "core/exported/ops.h"
#include "core/exported/program.h"
#include "io/pt2_file.h"
#include "io/read_file.h"

namespace duet {

using exported::ModelTensor;
using exported::TensorsByName;

// A program of torch.export over a tree of layers, whose training flags its ops follow.
class ExportedModel : public FileModel {
 public:
  // The file at `path` and a tree of its own. `who` reads it: for errors. Throws ConfigError.
  // `layers`: of the model that the program evaluates in the place of its own.
  ExportedModel(const std::string& path, const std::string& who, exported::LayersByPath layers = {});

  const std::shared_ptr<torch::nn::Module>& module() const override { return module_; }
  NamedTensors outputs(const std::vector<at::Tensor>& inputs) const override;
  const std::vector<std::string>& input_names() const override { return names_; }
  bool takes_by_name() const override { return true; }
  exported::ModeOps mode_ops() const { return exported::mode_ops(program_); }
  std::vector<std::string> training_ops() const override { return mode_ops().switched; }
  // Warns, once, of a model that was exported in evaluation mode.
  void check_trainable() const override;
  std::string write(const std::string& stem, const StateDict& weights) const override;
  // The program of the file at `path` runs in the place of this one while the model is in evaluation mode, with its
  // parameters and buffers. Throws ConfigError.
  void set_evaluation(const std::string& path, bool gives_loss);

 private:
  using Source = std::variant<at::Tensor, std::size_t>;  // of the model, or the place among forward()'s tensors

  void load();
  void bind(const exported::TensorsByName& tensors);
  Source source_of(std::size_t slot, const exported::TensorsByName& tensors, const exported::TensorsByName& shared);
  NamedTensors evaluation_outputs(const std::vector<at::Tensor>& inputs) const;
  void check_inputs(const std::vector<at::Tensor>& inputs) const;
  at::Device device(const std::vector<at::Tensor>& inputs) const;

  std::string path_, who_;
  exported::Program program_;
  std::unique_ptr<exported::InputShapes> shapes_;
  std::vector<std::string> names_;  // of forward()'s tensors
  exported::LayersByPath layers_;
  std::shared_ptr<torch::nn::Module> module_;          // the whole
  std::vector<const torch::nn::Module*> node_layers_;  // by the program's modules
  std::vector<at::Tensor> buffers_;
  std::vector<Source> sources_;  // of the graph's inputs
  std::unique_ptr<ExportedModel> evaluation_;
  std::vector<std::size_t> evaluation_inputs_;  // their places among forward()'s tensors here
  mutable bool warns_ = false;                  // before the next training step
};

namespace {

constexpr const char* kExportCall =
    "torch.export.save(torch.export.export(model.train(), args, dynamic_shapes=...), path)";

template <class Dict>
void add_all(const Dict& dict, TensorsByName& tensors) {
  for (const auto& item : dict) tensors.emplace(item.key(), item.value());
}

// A tensor of another shape could be broadcast without a word.
void check_meta(const ModelTensor& item, const at::Tensor& tensor) {
  std::vector<std::string> sizes;
  for (const int64_t size : tensor.sizes()) sizes.push_back(std::to_string(size));
  expect_file(sizes == item.sizes && tensor.scalar_type() == item.dtype, "the tensor '", item.name, "' is ",
              tensor.scalar_type(), tensor.sizes(), ", but its graph expects ", item.dtype, "[", join(item.sizes), "]");
}

// One of another name would keep the value of the export.
void check_weights_are_shared(const NamedTensors& weights, const torch::nn::Module& module) {
  TensorsByName shared;
  add_all(module.named_parameters(), shared);
  add_all(module.named_buffers(), shared);
  for (const auto& [name, tensor] : weights) {
    expect_file(shared.contains(name), "its tensor '", name,
                "' is none of the model that is trained; export both files from the same model");
  }
}

}  // namespace

ExportedModel::ExportedModel(const std::string& path, const std::string& who, exported::LayersByPath layers)
    : path_(path), who_(who), layers_(std::move(layers)) {
  if (!std::filesystem::is_regular_file(path)) {
    throw ConfigError("[" + who + "] there is no file '" + path + "'; write one in Python: " + kExportCall);
  }
  try {
    read_file(who.c_str(), path, [&] { load(); });
  } catch (const DataError& error) {
    throw ConfigError(error.what());
  }
}

void ExportedModel::load() {
  Pt2File file = read_pt2(path_);
  const bool is_evaluation = !layers_.empty();
  try {
    program_ = exported::read_program(file.program);
  } catch (const ConfigError& error) {
    throw ConfigError("[" + who_ + "] the program in '" + path_ + "' " + error.what());
  }
  if (program_.is_functional || (program_.is_decomposed && !is_evaluation)) {
    throw ConfigError("[" + who_ + "] the program in '" + path_ +
                      "' was decomposed for inference (run_decompositions), expected one for training; write it with " +
                      kExportCall);
  }
  TensorsByName tensors;
  for (const auto& [name, tensor] : file.constants) tensors.emplace(name, tensor);
  for (const auto& [name, tensor] : file.weights) tensors.emplace(name, tensor);
  if (!is_evaluation) {
    exported::mark_training_ops(program_.graph);
    warns_ = exported::is_in_evaluation_mode(program_);
    layers_ = exported::make_layers(program_, tensors);
  }
  module_ = layers_.at("");
  if (is_evaluation) check_weights_are_shared(file.weights, *module_);
  bind(tensors);
  shapes_ = std::make_unique<exported::InputShapes>(program_);
  if (!shapes_->unchecked().empty()) {
    log_warning("[" + who_ + "] conditions of the export of '" + path_ +
                "' are not checked: " + join_first(shapes_->unchecked()));
  }
}

// Where an input of the graph comes from. Parameters and buffers are those of the layers, constants the program's own.
ExportedModel::Source ExportedModel::source_of(std::size_t slot, const TensorsByName& tensors,
                                               const TensorsByName& shared) {
  std::size_t place = 0;
  for (const exported::UserInput& input : program_.inputs) {
    if (input.is_tensor && input.slot == slot) return place;
    place += input.is_tensor ? 1 : 0;
  }
  const auto item = std::ranges::find(program_.tensors, slot, &ModelTensor::slot);
  expect_file(item != program_.tensors.end(), "its graph has an input that its signature does not name");
  const bool is_constant = item->kind == ModelTensor::Kind::kConstant || shared.count(item->name) == 0;
  const TensorsByName& from = is_constant ? tensors : shared;
  const auto found = from.find(item->name);
  expect_file(found != from.end(), "the tensor '", item->name, "' is missing");
  check_meta(*item, found->second);
  if (is_constant) layers_.at("")->constants.push_back(found->second);
  return found->second;
}

void ExportedModel::bind(const TensorsByName& tensors) {
  TensorsByName shared;
  add_all(module_->named_parameters(), shared);
  add_all(module_->named_buffers(), shared);
  for (const auto& item : module_->named_buffers()) buffers_.push_back(item.value());
  for (const exported::Slot& input : program_.graph.inputs) sources_.push_back(source_of(input.index, tensors, shared));
  for (const exported::UserInput& input : program_.inputs) {
    if (input.is_tensor) names_.push_back(input.name);
  }
  for (const exported::Module& module : program_.modules) {
    const auto layer = layers_.find(module.path);
    node_layers_.push_back(layer == layers_.end() ? module_.get() : layer->second.get());
  }
}

void ExportedModel::set_evaluation(const std::string& path, bool gives_loss) {
  evaluation_ = std::make_unique<ExportedModel>(path, who_, layers_);
  if (evaluation_->names_.size() != names_.size()) {
    throw ConfigError(c10::str("[", who_, "] '", path, "' takes ", evaluation_->names_.size(), " tensors, but '", path_,
                               "' ", names_.size(), "; export both from the same model"));
  }
  // A loss for training alone has no place in a program of one result.
  const std::vector<std::string>& results = evaluation_->program_.outputs;
  const std::size_t needed = std::min<std::size_t>(gives_loss ? 2 : 1, program_.outputs.size());
  for (std::size_t i = 0; i < needed && (gives_loss || results.size() > 1); ++i) {
    if (std::ranges::count(results, program_.outputs[i]) > 0) continue;
    throw ConfigError(c10::str("[", who_, "] forward() of '", path, "' gives ", join(results), ", that of '", path_,
                               "' ", join(program_.outputs), "; give results the same names"));
  }
  for (std::size_t i = 0; i < names_.size(); ++i) {
    const auto named = std::ranges::find(names_, evaluation_->names_[i]);
    evaluation_inputs_.push_back(named == names_.end() ? i : static_cast<std::size_t>(named - names_.begin()));
  }
  if (std::set(evaluation_inputs_.begin(), evaluation_inputs_.end()).size() == names_.size()) return;
  throw ConfigError(c10::str("[", who_, "] forward() of '", path, "' takes ", join(evaluation_->names_), ", that of '",
                             path_, "' ", join(names_), "; give its arguments the same names"));
}

// The first is what the program itself gives first, wherever the other one has it.
NamedTensors ExportedModel::evaluation_outputs(const std::vector<at::Tensor>& inputs) const {
  std::vector<at::Tensor> ordered;
  if (inputs.size() == names_.size()) {
    for (const std::size_t place : evaluation_inputs_) ordered.push_back(inputs[place]);
  }
  NamedTensors outputs = evaluation_->outputs(ordered.empty() ? inputs : ordered);
  const auto first = std::ranges::find(outputs, program_.outputs.empty() ? "" : program_.outputs.front(),
                                       &NamedTensors::value_type::first);
  if (first != outputs.end()) std::rotate(outputs.begin(), first, first + 1);
  return outputs;
}

void ExportedModel::check_trainable() const {
  if (!std::exchange(warns_, false)) return;
  log_warning("[" + who_ + "] '" + path_ +
              "' was exported in evaluation mode: dropout does nothing and batch norms keep their statistics; unless "
              "you mean that, write it with " +
              kExportCall);
}

void ExportedModel::check_inputs(const std::vector<at::Tensor>& inputs) const {
  const auto place = [&] { return "[" + who_ + "] '" + path_ + "': "; };
  if (inputs.size() != names_.size()) {
    throw StepError(c10::str(place(), "forward() takes ", names_.size(), " tensors (", join(names_), "), got ",
                             inputs.size(), "; name them in inputs"));
  }
  try {
    shapes_->check(inputs);
  } catch (const StepError& error) {
    throw StepError(place() + error.what());
  }
}

std::string ExportedModel::write(const std::string& stem, const StateDict& weights) const {
  write_pt2(stem + ".pt2", path_, weights);
  return stem + ".pt2";
}

// Where the model is; the inputs, if it has no tensors.
at::Device ExportedModel::device(const std::vector<at::Tensor>& inputs) const {
  for (const Source& source : sources_) {
    if (const auto* tensor = std::get_if<at::Tensor>(&source)) return tensor->device();
  }
  return inputs.empty() ? at::Device(at::kCPU) : inputs.front().device();
}

NamedTensors ExportedModel::outputs(const std::vector<at::Tensor>& inputs) const {
  if (evaluation_ != nullptr && !module_->is_training()) return evaluation_outputs(inputs);
  check_inputs(inputs);
  std::vector<c10::IValue> values;
  for (const Source& source : sources_) {
    const auto* tensor = std::get_if<at::Tensor>(&source);
    values.emplace_back(tensor != nullptr ? *tensor : inputs[std::get<std::size_t>(source)]);
  }
  exported::Interpreter interpreter(node_layers_, buffers_, device(inputs));
  std::vector<c10::IValue> results;
  if (const auto error = caught([&] { results = interpreter.run(program_.graph, std::move(values)); })) {
    const exported::Node* node = interpreter.last_node();
    throw StepError("[" + who_ + "] forward() of '" + path_ + "' failed: " + text_of(error) +
                    (node == nullptr ? "" : ", in " + node->target) +
                    (node == nullptr || node->place.empty() ? "" : ", at " + node->place));
  }
  NamedTensors outputs;
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (results[i].isTensor())
      outputs.emplace_back(i < program_.outputs.size() ? program_.outputs[i] : std::to_string(i),
                           results[i].toTensor());
  }
  if (outputs.empty()) throw ConfigError("[" + who_ + "] forward() of '" + path_ + "' returns no tensor");
  return outputs;
}

const OptionFields& ExportedTaskOptions::fields() {
  using O = ExportedTaskOptions;
  return described<O>("ExportedTask", [](const auto& add) {
    add.about(
        "A model in training mode saved by torch.export.save: its forward() gets the tensors that inputs names, as the "
        "data gives them; with loss: none also the target, last, and returns the loss.");
    add_file_task_options<O>(add, "file written by torch.export.save of a model in training mode");
    add("eval_path", &O::eval_path,
        "the same model exported in evaluation mode, for evaluation and prediction; empty: path's own ops with a "
        "training flag run without it");
  });
}

std::unique_ptr<Task> make_exported_task(const ExportedTaskOptions& options) {
  check_options(options);
  auto model = std::make_unique<ExportedModel>(options.path, "ExportedTask");
  if (!options.eval_path.empty()) {
    model->set_evaluation(options.eval_path, options.loss.loss == "none");
  } else if (const auto random = model->mode_ops().always_random; !random.empty()) {
    log_warning("[ExportedTask] '" + options.path + "' draws random numbers in evaluation too: " + join_first(random) +
                "; export model.eval() as well and name that file in eval_path");
  }
  return make_file_task(std::move(model),
                        {options.path, options.inputs, options.target, options.loss, options.ignore_index});
}

void write_exported_model(const std::string& path, const std::string& source, const StateDict& weights) {
  write_pt2(path, source, weights);
}

ExportedModule::ExportedModule(const std::string& path)
    : model_(std::make_shared<const ExportedModel>(path, "ExportedModule")) {}

const std::shared_ptr<torch::nn::Module>& ExportedModule::module() const { return model_->module(); }

const std::vector<std::string>& ExportedModule::input_names() const { return model_->input_names(); }

NamedTensors ExportedModule::outputs(const std::vector<at::Tensor>& inputs) const { return model_->outputs(inputs); }

std::vector<std::string> ExportedModule::training_ops() const { return model_->training_ops(); }

}  // namespace duet
