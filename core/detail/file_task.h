#pragma once

#include <memory>
#include <string>
#include <vector>
#include <torch/nn/module.h>
#include "core/model_file.h"

namespace duet {

// A model out of a file.
class FileModel {
 public:
  virtual ~FileModel() = default;
  // Its submodules, parameters and buffers by their names in the file.
  virtual const std::shared_ptr<torch::nn::Module>& module() const = 0;
  // Under all of their names, as they are now: code of the file may put others in their place.
  virtual NamedTensors parameters() const { return all_items_of(module()->named_parameters()); }
  virtual NamedTensors buffers() const { return all_items_of(module()->named_buffers()); }
  // What forward() gives for these tensors, by name. Not empty; the first is the prediction.
  virtual NamedTensors outputs(const std::vector<at::Tensor>& inputs) const = 0;
  // Names of what forward() takes; empty: only the order is known.
  virtual const std::vector<std::string>& input_names() const = 0;
  // Whether what the data has beside these is left out; else the order holds then.
  virtual bool takes_by_name() const { return false; }
  virtual std::vector<std::string> training_ops() const { return {}; }
  // The file with these weights in it: see Task::write_model.
  virtual std::string write(const std::string& stem, const StateDict& weights) const = 0;
  // Before each training step.
  virtual void check_trainable() const {}
};

// The options that any such model has.
std::unique_ptr<Task> make_file_task(std::unique_ptr<FileModel> model, ScriptTaskOptions options);

// Describes the options that all of them have.
template <class Options, class Add>
void add_file_task_options(const Add& add, const char* path) {
  add("path", &Options::path, path).needed();
  add("inputs", &Options::inputs,
      "batch tensors passed to forward(): in its order, or all by its names; empty: all but target");
  add("target", &Options::target, "batch tensor that the loss compares with");
  add("ignore_index", &Options::ignore_index, "class in the target that does not count");
  add_loss_options(add, [](auto member) { return [member](Options& o) -> auto& { return o.loss.*member; }; },
                   {"cross_entropy", "focal", "dice", "mse", "l1", "huber", "bce", "none"});
}

}  // namespace duet
