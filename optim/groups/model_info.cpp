#include <algorithm>
#include <array>
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/instancenorm.h>
#include <torch/nn/modules/normalization.h>
#include "optim/groups/detail/described_layer.h"
#include "optim/groups/param_group.h"

namespace duet {

namespace {

template <class... Layers>
bool is_any(const torch::nn::Module& module) {
  return (... || (dynamic_cast<const Layers*>(&module) != nullptr));
}

bool is_norm(const torch::nn::Module& module) {
  using namespace torch::nn;
  return is_any<BatchNorm1dImpl, BatchNorm2dImpl, BatchNorm3dImpl, InstanceNorm1dImpl, InstanceNorm2dImpl,
                InstanceNorm3dImpl, GroupNormImpl, LayerNormImpl>(module);
}

ModuleKind kind_of(const torch::nn::Module& module, const std::string& type) {
  if (is_norm(module)) return ModuleKind::kNorm;
  if (const auto* conv = dynamic_cast<const torch::nn::Conv2dImpl*>(&module)) {
    const bool depthwise = conv->options.in_channels() == conv->options.groups();
    return depthwise ? ModuleKind::kDepthwiseConv2d : ModuleKind::kConv2d;
  }
  // LibTorch has no such layer; a user's is known by its name.
  return type.find("DeformConv2d") != std::string::npos ? ModuleKind::kDeformableConv2d : ModuleKind::kOther;
}

ModuleInfo info_of(const std::string& path, const torch::nn::Module& module) {
  if (const auto* layer = dynamic_cast<const DescribedLayer*>(&module)) {
    ModuleInfo info = layer->info();
    info.path = path;
    return info;
  }
  const std::string& name = module.name();
  std::string type = name.substr(0, name.find('<'));
  type.erase(0, type.rfind(':') + 1);
  const ModuleKind kind = kind_of(module, type);
  return {path, std::move(type), kind};
}

}  // namespace

ModuleInfo DescribedLayer::info() const {
  static constexpr std::array kNorms = {"BatchNorm", "InstanceNorm", "GroupNorm", "LayerNorm"};
  const auto holds = [&](const char* part) { return type_.find(part) != std::string::npos; };
  if (std::any_of(kNorms.begin(), kNorms.end(), holds)) return {"", type_, ModuleKind::kNorm};
  if (holds("DeformConv2d")) return {"", type_, ModuleKind::kDeformableConv2d};
  if (!holds("Conv2d")) return {"", type_, ModuleKind::kOther};
  // A weight is [out_channels, in_channels / groups, height, width]. The numbers themselves are gone from a file.
  const auto parameters = named_parameters(/*recurse=*/false);
  const at::Tensor* weight = parameters.find("weight");
  const bool depthwise = weight != nullptr && weight->dim() == 4 && weight->size(1) == 1;
  return {"", type_, depthwise ? ModuleKind::kDepthwiseConv2d : ModuleKind::kConv2d};
}

std::vector<ModuleInfo> modules_of(const torch::nn::Module& module) {
  std::vector<ModuleInfo> modules = {info_of("", module)};
  // Without the module itself, which then need not be held by a shared_ptr.
  for (const auto& item : module.named_modules("", /*include_self=*/false)) {
    modules.push_back(info_of(item.key(), *item.value()));
  }
  return modules;
}

}  // namespace duet
