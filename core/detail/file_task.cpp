#include "core/detail/file_task.h"
#include <algorithm>
#include <map>
#include <utility>
#include "base/detail/text.h"
#include "base/error.h"

namespace duet {

namespace {

class FileTask : public ModuleTask<torch::nn::Module> {
 public:
  FileTask(std::unique_ptr<FileModel> model, ScriptTaskOptions options)
      : ModuleTask(model->module(), nullptr, nullptr), model_(std::move(model)), options_(std::move(options)) {}

  NamedTensors named_parameters() const override { return deduplicated(model_->parameters()); }
  NamedTensors named_buffers() const override { return deduplicated(model_->buffers()); }
  std::map<std::string, std::string> tied_names() const override {
    return aliases_of(model_->parameters(), model_->buffers());
  }

  double weight(const Batch& batch) const override {
    if (returns_loss() || !batch.has(options_.target)) return Task::weight(batch);
    return loss_weight(options_.loss, batch[options_.target], {.ignored = options_.ignore_index});
  }

  StepOutput training_step(const Batch& batch) override {
    if (module().is_training()) model_->check_trainable();
    const Outputs outputs = outputs_of(batch);
    NamedTensors further;
    if (outputs.prediction.defined()) further.emplace_back("prediction", outputs.prediction);
    return {returns_loss() ? outputs.loss : loss(outputs.prediction, batch), {}, std::move(further)};
  }

  std::vector<std::string> training_ops() const override { return model_->training_ops(); }

  std::string write_model(const std::string& stem, const StateDict& weights) const override {
    const bool is_whole =
        std::ranges::all_of(named_parameters(), [&](const auto& item) { return weights.has(item.first); });
    return is_whole ? model_->write(stem, weights) : "";
  }

  NamedTensors predict(const Batch& batch) override {
    const at::Tensor prediction = outputs_of(batch).prediction;
    if (prediction.defined()) return {{"prediction", prediction}};
    throw ConfigError("[Task] forward() of '" + options_.path +
                      "' gives its loss alone, expected a prediction too; return both: {'loss': ..., 'logits': ...}");
  }

 private:
  bool returns_loss() const { return options_.loss.loss == "none"; }

  struct Outputs {
    at::Tensor loss, prediction;  // undefined: forward() gives none
  };

  // The loss is what is called so, or the first; the prediction is the first of the others.
  Outputs outputs_of(const Batch& batch) const {
    const NamedTensors outputs = model_->outputs(inputs_of(batch));
    if (!returns_loss()) return {{}, outputs.front().second};
    const auto named = std::ranges::find(outputs, "loss", &NamedTensors::value_type::first);
    const std::size_t loss = named == outputs.end() ? 0 : static_cast<std::size_t>(named - outputs.begin());
    const std::size_t other = loss == 0 ? 1 : 0;
    return {outputs[loss].second, other < outputs.size() ? outputs[other].second : at::Tensor()};
  }

  // By name if these are all that forward() names, otherwise by order, unless that gives one what another is called.
  std::vector<std::string> names_in(const Batch& batch) const {
    if (!options_.inputs.empty()) {
      const bool are_its_own =
          model_->takes_by_name() && std::ranges::is_permutation(options_.inputs, model_->input_names());
      return are_its_own ? model_->input_names() : options_.inputs;
    }
    std::vector<std::string> names;
    for (const auto& item : batch.items()) {
      if (item.first != options_.target) names.push_back(item.first);
    }
    const std::vector<std::string>& known = model_->input_names();
    const bool may_be_named = !known.empty() && (model_->takes_by_name() || known.size() == names.size());
    if (may_be_named && std::ranges::all_of(known, [&](const std::string& name) { return batch.has(name); }))
      return known;
    for (std::size_t i = 0; i < names.size(); ++i) {
      const auto named = std::ranges::find(known, names[i]);
      if (named == known.end() || named == known.begin() + static_cast<std::ptrdiff_t>(i)) continue;
      throw ConfigError("[Task] found the inputs " + join(names) + " for '" + options_.path +
                        "', whose forward() takes " + join(known) + ": '" + names[i] +
                        "' would be passed as another; give the data these names, or " +
                        "say in model.inputs what is passed, in the order of forward()");
    }
    return names;
  }

  std::vector<at::Tensor> inputs_of(const Batch& batch) const {
    std::vector<at::Tensor> inputs;
    const std::vector<std::string> names = names_in(batch);
    for (const std::string& name : names) inputs.push_back(item(batch, name));
    const bool has_target = std::ranges::find(names, options_.target) != names.end();
    if (returns_loss() && batch.has(options_.target) && !has_target) inputs.push_back(batch[options_.target]);
    return inputs;
  }

  const at::Tensor& item(const Batch& batch, const std::string& name) const {
    try {
      return batch[name];
    } catch (const DataError& error) {
      throw DataError(error.what() + std::string(" (model.inputs and model.target of '") + options_.path + "')");
    }
  }

  at::Tensor loss(const at::Tensor& output, const Batch& batch) const {
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

  std::unique_ptr<FileModel> model_;
  ScriptTaskOptions options_;
};

}  // namespace

std::unique_ptr<Task> make_file_task(std::unique_ptr<FileModel> model, ScriptTaskOptions options) {
  return std::make_unique<FileTask>(std::move(model), std::move(options));
}

}  // namespace duet
