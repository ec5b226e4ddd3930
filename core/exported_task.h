#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>
#include "../base/batch.h"
#include "../base/state_dict.h"
#include "losses.h"
#include "task.h"

namespace torch::nn {
class Module;
}

namespace duet {

class ExportedModel;

struct ExportedTaskOptions {
  std::string path{};  // file of a model in training mode, written by torch.export.save; no code of it runs
  // Batch tensors passed to forward(), in order; empty: those that have the names of its arguments, or else all but
  // `target` in order.
  std::vector<std::string> inputs{};
  std::string target = "target";
  // Any of loss_of(), with classes [N, T] for logits [N, T, C] too; or "none": forward() takes the target as its last
  // argument and gives the loss, as its result called "loss" or its first.
  LossOptions loss{};
  int64_t ignore_index = -100;  // the class that does not count
  // The same model exported in evaluation mode, which then evaluates and predicts with the trained weights; empty: the
  // ops of `path` that have a training flag run without it.
  std::string eval_path{};
  static const OptionFields& fields();
};

// A model of torch.export as a task, in either mode. Throws ConfigError that names the file and what is wrong with it.
std::unique_ptr<Task> make_exported_task(const ExportedTaskOptions& options);

// Writes the file at `source` with other weights, by their names in Python, as torch.export.load takes it. `path` ends
// with .pt2. Throws DataError; `path` is then as it was.
void write_exported_model(const std::string& path, const std::string& source, const StateDict& weights);

// A model of torch.export as a part of a model of your own, as ScriptModule is one of TorchScript. In evaluation mode
// its ops with a training flag (dropout, batch norms, attention) run without it, and buffers stay as they are.
class ExportedModule {
 public:
  // Throws ConfigError as make_exported_task does.
  explicit ExportedModule(const std::string& path);

  // Its submodules, parameters and buffers by their names in Python, to be registered in yours. Shared, not copied.
  const std::shared_ptr<torch::nn::Module>& module() const;

  // Names of the tensors that forward() takes ("x", "batch.image").
  const std::vector<std::string>& input_names() const;
  // All tensors that it returns, by their names ("logits", "aux.0"; "" for the only one). Throws StepError with the
  // line of Python that fails, or the input whose shape was not exported.
  NamedTensors outputs(const std::vector<at::Tensor>& inputs) const;
  // The first of them.
  template <class... Tensors>
  at::Tensor forward(const Tensors&... inputs) const {
    return outputs({inputs...}).front().second;
  }
  // The ops that training mode turns on and evaluation mode off, each as "aten.dropout.default in layers.0 (net.py:8 in
  // forward)".
  std::vector<std::string> training_ops() const;

 private:
  std::shared_ptr<const ExportedModel> model_;
};

}  // namespace duet
