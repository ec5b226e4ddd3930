#pragma once

#include <string>
#include <utility>
#include <torch/nn/module.h>
#include "optim/groups/param_group.h"

namespace duet {

// A layer that Python made, of a class called `type` ("LayerNorm"), which its C++ class does not tell. Files keep class
// names but no base classes: it counts as a norm if its name holds BatchNorm, InstanceNorm, GroupNorm or LayerNorm, and
// as a convolution if it holds Conv2d.
class DescribedLayer : public torch::nn::Module {
 public:
  explicit DescribedLayer(std::string type) : type_(std::move(type)) {}
  // Without its path.
  ModuleInfo info() const;

 private:
  std::string type_;
};

}  // namespace duet
