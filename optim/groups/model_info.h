#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>
#include "../../base/batch.h"

namespace torch::nn {
class Module;
}
namespace torch::jit {
struct Module;
}

namespace duet {

// What a layer is to the rules for parameter groups.
enum class ModuleKind {
  kOther,
  kNorm,  // batch, instance, group or layer norm: the layers that mmengine's rules call norms
  kConv2d,
  kDepthwiseConv2d,  // a 2-d convolution whose in_channels equal its groups
  kDeformableConv2d,
};

struct ModuleInfo {
  std::string path;  // as in the parameters' names; empty: the whole model
  std::string type;  // class name without namespaces: "BatchNorm2dImpl"; of a TorchScript module "BatchNorm2d"
  ModuleKind kind = ModuleKind::kOther;
};

// Where a parameter stands in its model, for learning rates that fall with the distance from the output.
struct LayerDepth {
  int64_t id = 0;  // 0: the embedding ... count - 1: the head
  int64_t count = 0;
};

// What the rules for parameter groups ask of a model; a Task is one.
class ModelInfo {
 public:
  virtual ~ModelInfo() = default;
  // Every trainable tensor, with dotted names, in a fixed order. Shared, not copied.
  virtual NamedTensors named_parameters() const = 0;
  // The layers that the parameters belong to, by which norms and convolutions are told; none if they are not known.
  virtual std::vector<ModuleInfo> modules() const { return {}; }
  // Depth of the parameter called `name`, for layer-wise learning rates; nothing if the model gives no depths.
  virtual std::optional<LayerDepth> layer_depth(const std::string& /*name*/) const { return std::nullopt; }
};

// The module and all below it. A C++ layer counts as a norm or convolution if it is one or derives from one.
std::vector<ModuleInfo> modules_of(const torch::nn::Module& module);
// TorchScript keeps class names but no base classes: a layer counts as a norm if its name holds BatchNorm,
// InstanceNorm, GroupNorm or LayerNorm, and as a convolution if it holds Conv2d.
std::vector<ModuleInfo> modules_of(const torch::jit::Module& module);

}  // namespace duet
