#pragma once

#include <string>
#include <ATen/core/Tensor.h>
#include "optim/groups/param_group.h"

namespace duet {

// A torch::nn::Module whose C++ class does not tell what it is: a layer that Python made.
class DescribedLayer {
 public:
  virtual ~DescribedLayer() = default;
  // Without its path.
  virtual ModuleInfo info() const = 0;
};

// What a class of Python's is by its name, as ModuleInfo's modules_of says. `weight`: the layer's, which may be
// undefined.
ModuleKind kind_of(const std::string& type, const at::Tensor& weight);

}  // namespace duet
