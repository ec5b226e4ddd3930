#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>
#include "../base/batch.h"
#include "../base/state_dict.h"
#include "losses.h"
#include "task.h"

// Models out of files that Python wrote: TorchScript (torch.jit.save) and torch.export (torch.export.save), each as a
// task, in either mode, or as a part of a model of your own.

namespace torch::nn {
class Module;
}

namespace duet {

class ExportedModel;
class FileModel;

struct ScriptTaskOptions {
  std::string path{};                 // file written by torch.jit.save; loading it runs code from that file
  std::vector<std::string> inputs{};  // batch tensors passed to forward(), in order; empty: all but `target`
  std::string target = "target";
  // Any of loss_of(), with classes [N, T] for logits [N, T, C] too; or "none": forward() takes the target as its last
  // argument and gives the loss: as its result, or that of torch.export called "loss".
  LossOptions loss{};
  int64_t ignore_index = -100;  // the class that does not count
  static const OptionFields& fields();
};

struct ExportedTaskOptions {
  std::string path{};  // file of a model in training mode, written by torch.export.save; no code of it runs
  // As in ScriptTaskOptions; empty inputs: those that have the names of forward()'s arguments, if the batch has all.
  std::vector<std::string> inputs{};
  std::string target = "target";
  LossOptions loss{};
  int64_t ignore_index = -100;
  // The same model exported in evaluation mode, which then evaluates and predicts with the trained weights; empty: the
  // ops of `path` that have a training flag run without it.
  std::string eval_path{};
  static const OptionFields& fields();
};

// Throw ConfigError that names the file and what is wrong with it.
std::unique_ptr<Task> make_script_task(const ScriptTaskOptions& options);
std::unique_ptr<Task> make_exported_task(const ExportedTaskOptions& options);

// Write the file at `source` with other weights, by the names of its parameters and buffers, as torch.jit.load or
// torch.export.load takes it (`path` then ends with .pt2). Throw DataError; `path` is then as it was.
void write_script_model(const std::string& path, const std::string& source, const StateDict& weights);
void write_exported_model(const std::string& path, const std::string& source, const StateDict& weights);

// A scripted or traced module as a part of a model of your own, such as a backbone under a new head:
//
//   struct Net : torch::nn::Module {
//     explicit Net(const std::string& path) : backbone(path) { register_module("backbone", backbone.module()); }
//     at::Tensor forward(const at::Tensor& x) { return head(backbone.forward(x)); }
//     duet::ScriptModule backbone;
//     torch::nn::Linear head = ...
//   };
//
// Both modes give the same bits, however often it was called; LibTorch's own torch::jit::Module::forward() may not,
// since it rewrites its graph after some calls.
class ScriptModule {
 public:
  // Loading runs code from the file. Throws ConfigError as make_script_task does.
  explicit ScriptModule(const std::string& path);

  // Its submodules, parameters and buffers by their names in the file, to be registered in yours. Shared, not copied.
  const std::shared_ptr<torch::nn::Module>& module() const;

  // The tensor that forward() of the file returns, or the first of a tuple. Throws StepError with the line that fails.
  template <class... Tensors>
  at::Tensor forward(const Tensors&... inputs) const {
    return run({inputs...});
  }

 private:
  at::Tensor run(const std::vector<at::Tensor>& inputs) const;

  std::shared_ptr<const FileModel> model_;
};

// The same of torch.export. In evaluation mode its ops with a training flag (dropout, batch norms, attention) run
// without it, and buffers stay as they are.
class ExportedModule {
 public:
  // Throws ConfigError as make_exported_task does.
  explicit ExportedModule(const std::string& path);

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
