#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>
#include <ATen/core/Tensor.h>
#include "core/exported/program.h"
#include "optim/groups/detail/described_layer.h"

namespace duet::exported {

// A module of the model that was exported: its parameters, buffers and submodules, under Python's names.
class Layer : public DescribedLayer {
 public:
  using DescribedLayer::DescribedLayer;
  using torch::nn::Module::to;
  void to(torch::Device device, bool non_blocking) override;

  // Tensors of graphs that are neither parameters nor buffers.
  std::vector<at::Tensor> constants;
};

using TensorsByName = std::map<std::string, at::Tensor>;

using LayersByPath = std::map<std::string, std::shared_ptr<Layer>>;

// The tree of a program's modules, the whole model as "", with its parameters and buffers, tied ones shared. Throws
// MalformedFile if one is missing.
LayersByPath make_layers(const Program& program, const TensorsByName& tensors);

}  // namespace duet::exported
