#include "core/exported/exported_model.h"
#include <algorithm>
#include <filesystem>
#include <utility>
#include <c10/util/StringUtil.h>
#include "base/detail/text.h"
#include "base/error.h"
#include "base/log.h"
#include "core/exported/interpreter.h"
#include "core/exported/read_program.h"
#include "io/pt2_file.h"
#include "io/read_file.h"

namespace duet {

using exported::Layer;
using exported::ModelTensor;
using exported::TensorsByName;

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

}  // namespace

ExportedModel::ExportedModel(const std::string& path, const std::string& who) : ExportedModel(path, who, nullptr) {}

ExportedModel::ExportedModel(const std::string& path, const std::string& who, std::shared_ptr<Layer> layers)
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
  const bool is_evaluation = layers_ != nullptr;
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
    exported::mark_training_ops(program_.graph, program_.tensors);
    warns_ = exported::is_in_evaluation_mode(program_);
    layers_ = exported::make_layers(program_, tensors);
  }
  module_ = layers_;
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
  if (is_constant) layers_->constants.push_back(found->second);
  return found->second;
}

void ExportedModel::bind(const TensorsByName& tensors) {
  TensorsByName shared;
  add_all(layers_->named_parameters(), shared);
  add_all(layers_->named_buffers(), shared);
  for (const auto& item : layers_->named_buffers()) buffers_.push_back(item.value());
  for (const exported::Slot& input : program_.graph.inputs) sources_.push_back(source_of(input.index, tensors, shared));
  for (const exported::UserInput& input : program_.inputs) {
    if (input.is_tensor) names_.push_back(input.name);
  }
  for (const exported::Module& module : program_.modules) {
    const auto layer = layers_->find(module.path);
    node_layers_.push_back(layer == nullptr ? layers_.get() : layer.get());
  }
}

void ExportedModel::set_evaluation(const std::string& path) {
  evaluation_ = std::unique_ptr<ExportedModel>(new ExportedModel(path, who_, layers_));
  if (evaluation_->names_.size() != names_.size()) {
    throw ConfigError(c10::str("[", who_, "] '", path, "' takes ", evaluation_->names_.size(), " tensors, but '", path_,
                               "' ", names_.size(), "; export both from the same model"));
  }
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
  if (evaluation_ != nullptr && !module_->is_training()) return evaluation_->outputs(inputs);
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

}  // namespace duet
