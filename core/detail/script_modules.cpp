#include <algorithm>
#include <array>
#include <torch/csrc/jit/api/module.h>
#include "optim/groups/param_group.h"

namespace duet {

namespace {

// "LayerNorm" from "__torch__.torch.nn.modules.normalization.___torch_mangle_3.LayerNorm".
std::string type_of(const torch::jit::Module& module) {
  const auto& name = module.type()->name();
  return name ? name->name() : std::string();
}

ModuleKind kind_of(const torch::jit::Module& module, const std::string& type) {
  static constexpr std::array kNorms = {"BatchNorm", "InstanceNorm", "GroupNorm", "LayerNorm"};
  const auto holds = [&](const char* part) { return type.find(part) != std::string::npos; };
  if (std::any_of(kNorms.begin(), kNorms.end(), holds)) return ModuleKind::kNorm;
  if (holds("DeformConv2d")) return ModuleKind::kDeformableConv2d;
  if (!holds("Conv2d")) return ModuleKind::kOther;
  // A weight is [out_channels, in_channels / groups, height, width]. The numbers themselves are gone from a traced
  // module.
  const bool has_weight = module.hasattr("weight") && module.attr("weight").isTensor();
  const at::Tensor weight = has_weight ? module.attr("weight").toTensor() : at::Tensor();
  const bool depthwise = weight.defined() && weight.dim() == 4 && weight.size(1) == 1;
  return depthwise ? ModuleKind::kDepthwiseConv2d : ModuleKind::kConv2d;
}

}  // namespace

std::vector<ModuleInfo> modules_of(const torch::jit::Module& module) {
  std::vector<ModuleInfo> modules;
  for (const auto& item : module.named_modules()) {
    std::string type = type_of(item.value);
    const ModuleKind kind = kind_of(item.value, type);
    modules.push_back({item.name, std::move(type), kind});
  }
  return modules;
}

}  // namespace duet
