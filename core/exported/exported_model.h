#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <variant>
#include <vector>
#include "core/detail/file_task.h"
#include "core/exported/input_shapes.h"
#include "core/exported/layers.h"
#include "core/exported/ops.h"
#include "core/exported/program.h"

namespace duet {

// A program of torch.export over a tree of layers, whose training flags its ops follow.
class ExportedModel : public FileModel {
 public:
  // The file at `path` and a tree of its own. `who` reads it: for errors. Throws ConfigError.
  ExportedModel(const std::string& path, const std::string& who);

  const std::shared_ptr<torch::nn::Module>& module() const override { return module_; }
  NamedTensors outputs(const std::vector<at::Tensor>& inputs) const override;
  const std::vector<std::string>& input_names() const override { return names_; }
  exported::ModeOps mode_ops() const { return exported::mode_ops(program_); }
  std::vector<std::string> training_ops() const override { return mode_ops().switched; }
  // Warns, once, of a model that was exported in evaluation mode.
  void check_trainable() const override;
  std::string write(const std::string& stem, const StateDict& weights) const override;
  // The program of the file at `path` runs in the place of this one while the model is in evaluation mode, with its
  // parameters and buffers. Throws ConfigError.
  void set_evaluation(const std::string& path);

 private:
  using Source = std::variant<at::Tensor, std::size_t>;  // of the model, or the place among forward()'s tensors

  ExportedModel(const std::string& path, const std::string& who, std::shared_ptr<exported::Layer> layers);
  void load();
  void bind(const exported::TensorsByName& tensors);
  Source source_of(std::size_t slot, const exported::TensorsByName& tensors, const exported::TensorsByName& shared);
  void check_inputs(const std::vector<at::Tensor>& inputs) const;
  at::Device device(const std::vector<at::Tensor>& inputs) const;

  std::string path_, who_;
  exported::Program program_;
  std::unique_ptr<exported::InputShapes> shapes_;
  std::vector<std::string> names_;  // of forward()'s tensors
  std::shared_ptr<exported::Layer> layers_;
  std::shared_ptr<torch::nn::Module> module_;          // the same
  std::vector<const torch::nn::Module*> node_layers_;  // by the program's modules
  std::vector<at::Tensor> buffers_;
  std::vector<Source> sources_;  // of the graph's inputs
  std::unique_ptr<ExportedModel> evaluation_;
  mutable bool warns_ = false;  // before the next training step
};

}  // namespace duet
