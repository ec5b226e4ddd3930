#pragma once

#include "optim/groups/param_group.h"

namespace duet {

// A torch::nn::Module whose C++ class does not tell what it is: a layer of TorchScript.
class DescribedLayer {
 public:
  virtual ~DescribedLayer() = default;
  // Without its path.
  virtual ModuleInfo info() const = 0;
};

}  // namespace duet
