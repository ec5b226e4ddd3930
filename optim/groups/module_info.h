#pragma once

#include <string>
#include <vector>

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

// The module and all below it. A C++ layer counts as a norm or convolution if it is one or derives from one.
std::vector<ModuleInfo> modules_of(const torch::nn::Module& module);
// TorchScript keeps class names but no base classes: a layer counts as a norm if its name holds BatchNorm,
// InstanceNorm, GroupNorm or LayerNorm, and as a convolution if it holds Conv2d.
std::vector<ModuleInfo> modules_of(const torch::jit::Module& module);

}  // namespace duet
