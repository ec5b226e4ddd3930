#pragma once

#include <memory>
#include <string>
#include <vector>
#include "../base/options.h"
#include "../base/state_dict.h"
#include "losses.h"
#include "task.h"

namespace torch::nn {
class Module;
}

namespace duet {

class FileModel;

struct ScriptTaskOptions {
  std::string path{};                 // file written by torch.jit.save; loading it runs code from that file
  std::vector<std::string> inputs{};  // batch tensors passed to forward(), in order; empty: all but `target`
  std::string target = "target";
  // Any of loss_of(), with classes [N, T] for logits [N, T, C] too; or "none": forward() takes the target as its last
  // argument and returns the loss itself.
  LossOptions loss{};
  int64_t ignore_index = -100;  // the class that does not count
  static const OptionFields& fields();
};

// A scripted or traced TorchScript module as a task, in either mode. Throws ConfigError that names the file if it is
// missing, is no TorchScript archive, or has no forward method.
std::unique_ptr<Task> make_script_task(const ScriptTaskOptions& options);

// Writes the file at `source` with other weights, by the names of its parameters and buffers, as torch.jit.load takes
// it. Throws DataError; `path` is then as it was.
void write_script_model(const std::string& path, const std::string& source, const StateDict& weights);

// A scripted or traced TorchScript module as a part of a model of your own, such as a backbone under a new head:
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

}  // namespace duet
