#include "core/exported_task.h"
#include "base/detail/text.h"
#include "base/log.h"
#include "core/detail/file_task.h"
#include "core/exported/exported_model.h"
#include "io/pt2_file.h"

namespace duet {

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
    model->set_evaluation(options.eval_path);
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
