#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <c10/util/StringUtil.h>
#include "base/detail/text.h"
#include "base/error.h"
#include "optim/groups/detail/param_group_builder.h"
#include "optim/groups/param_group.h"

namespace duet {

namespace {

bool is_token(const std::string& name) { return name == "cls_token" || name == "mask_token" || name == "pos_embed"; }

// The number at the `index`-th place between the dots of `name`, which starts with `list`: 5 for ("stages.2.5.weight",
// "stages", 2). Nothing if the name starts otherwise.
std::optional<int64_t> number_in(const std::string& name, const std::string& list, int index) {
  if (name.rfind(list + ".", 0) != 0) return std::nullopt;
  std::string_view rest = name;
  for (int i = 0; i < index; ++i) {
    const std::size_t dot = rest.find('.');
    rest.remove_prefix(dot == std::string_view::npos ? rest.size() : dot + 1);
  }
  const std::optional<int64_t> number = parse_number<int64_t>(rest.substr(0, rest.find('.')));
  if (number && *number >= 0) return number;
  throw ConfigError(c10::str("[LayerDecay] found the parameter '", name, "', expected a number at place ", index,
                             " of its name; give the depths by Task::layer_depth"));
}

LayerDepth at_depth(int64_t id, const std::string& name, int64_t num_layers) {
  if (id >= 0 && id < num_layers + 2) return {id, num_layers + 2};
  throw ConfigError(c10::str("[LayerDecay] '", name, "' lies at depth ", id, ", but num_layers is ", num_layers,
                             ", which allows at most ", num_layers + 1, "; set num_layers to what the backbone has"));
}

// Position in ConvNeXt's four stages.
std::size_t stage(int64_t number, const std::string& name) {
  if (number < 4) return static_cast<std::size_t>(number);
  throw ConfigError(c10::str("[LayerDecay] found stage ", number, " in '", name,
                             "', expected at most 3 as ConvNeXt has; give the depths by Task::layer_depth"));
}

}  // namespace

LayerDepth convnext_layer_depth(const std::string& name, int64_t num_layers) {
  int64_t id = num_layers + 1;
  if (is_token(name)) {
    id = 0;
  } else if (const auto downsample = number_in(name, "downsample_layers", 1)) {
    id = std::array<int64_t, 4>{0, 2, 3, num_layers}[stage(*downsample, name)];
  } else if (const auto found = number_in(name, "stages", 1)) {
    const std::size_t number = stage(*found, name);
    const int64_t block = *number_in(name, "stages", 2);
    id = std::array<int64_t, 4>{1, 2, 3 + block / 3, num_layers}[number];
  }
  return at_depth(id, name, num_layers);
}

LayerDepth convnext_stage_depth(const std::string& name, int64_t num_layers) {
  int64_t id = num_layers + 1;
  if (is_token(name) || name.rfind("downsample_layers", 0) == 0) {
    id = 0;
  } else if (const auto found = number_in(name, "stages", 1)) {
    id = *found + 1;
  }
  return at_depth(id, name, num_layers);
}

LayerDepth vit_layer_depth(const std::string& name, int64_t num_layers) {
  int64_t id = num_layers + 1;
  auto block = number_in(name, "layers", 1);
  if (!block) block = number_in(name, "blocks", 1);
  if (is_token(name) || name.rfind("patch_embed", 0) == 0) {
    id = 0;
  } else if (block) {
    id = *block + 1;
  }
  return at_depth(id, name, num_layers);
}

namespace {

using Depth = std::function<LayerDepth(const std::string&)>;
using BackboneDepth = LayerDepth (*)(const std::string& name, int64_t num_layers);

constexpr const char* kGiveDepths =
    "; give them by Task::layer_depth (or LayerDecayOptions::depth): for every parameter its depth, 0 to count - 1";

// The rule for a class of backbones. LibTorch's module classes end in Impl.
BackboneDepth rule_for(std::string type, const LayerDecayOptions& options) {
  const auto holds = [&type](const char* part) { return type.find(part) != std::string::npos; };
  const bool stage_wise = options.decay_type == "stage_wise";
  if (holds("ConvNeXt")) return stage_wise ? convnext_stage_depth : convnext_layer_depth;
  if (type.size() > 4 && type.ends_with("Impl")) type.resize(type.size() - 4);
  if (holds("BEiT") || holds("MAE") || type == "VisionTransformer" || type == "ViT") {
    if (!stage_wise) return vit_layer_depth;
    throw ConfigError("[LayerDecay] decay_type is stage_wise for a '" + type +
                      "', which has no stages; set layer_wise");
  }
  throw ConfigError("[LayerDecay] the backbone is a '" + type +
                    "', whose depths are not known, expected ConvNeXt, BEiT, MAE or VisionTransformer" + kGiveDepths);
}

Depth depth_of_backbone(const ModelInfo& model, const LayerDecayOptions& options) {
  const std::vector<ModuleInfo> modules = model.modules();
  const auto at_path = [&modules](const char* path) {
    return std::find_if(modules.begin(), modules.end(), [path](const ModuleInfo& m) { return m.path == path; });
  };
  auto backbone = at_path("backbone");
  const std::string prefix = backbone == modules.end() ? "" : "backbone.";
  if (backbone == modules.end()) backbone = at_path("");
  if (backbone == modules.end()) {
    throw ConfigError(std::string("[LayerDecay] the task lists no modules, so the depths are not known") + kGiveDepths);
  }
  const BackboneDepth rule = rule_for(backbone->type, options);
  require<ConfigError>(options.num_layers > 0,
                       "[LayerDecay] num_layers is missing; set it to the layers of the " + backbone->type);
  return [rule, prefix, count = options.num_layers](const std::string& name) {
    return rule(name.rfind(prefix, 0) == 0 ? name.substr(prefix.size()) : std::string(), count);
  };
}

Depth depth_of(const ModelInfo& model, const LayerDecayOptions& options, const std::string& any_name) {
  std::function<std::optional<LayerDepth>(const std::string&)> given = options.depth;
  if (!given && model.layer_depth(any_name))
    given = [&model](const std::string& name) { return model.layer_depth(name); };
  if (!given) return depth_of_backbone(model, options);
  return [given](const std::string& name) {
    const std::optional<LayerDepth> depth = given(name);
    require<ConfigError>(depth.has_value(), "[LayerDecay] layer_depth gives no depth for '" + name +
                                                "', but does for others; give one for every parameter");
    if (depth->id >= 0 && depth->id < depth->count) return *depth;
    throw ConfigError(c10::str("[LayerDecay] layer_depth gives depth ", depth->id, " of ", depth->count, " for '", name,
                               "', expected 0 to count - 1"));
  };
}

bool is_decayed(const std::string& name, const at::Tensor& tensor, bool strict) {
  if (tensor.dim() == 1) return false;
  const std::string last = name.substr(name.rfind('.') + 1);
  if (last == "bias" && (!strict || last != name)) return false;
  const std::string& compared = strict ? name : last;
  return compared != "pos_embed" && compared != "cls_token";
}

}  // namespace

const OptionFields& LayerDecayOptions::fields() {
  using O = LayerDecayOptions;
  return described<O>("LayerDecayOptions", [](const auto& add) {
    Range share = between(0, 1);
    share.above_low = true;
    add("num_layers", &O::num_layers, "layers of the backbone; 0: unknown")
        .in(between(0, 1 << 20))
        .expects("at least 1, or 0 for unknown");
    add("decay_rate", &O::decay_rate, "factor of the learning rate from one layer to the one before")
        .in(share)
        .needed();
    add("decay_type", &O::decay_type, "stage_wise: for ConvNeXt")
        .one_of({"layer_wise", "stage_wise"})
        .expects("layer_wise or stage_wise");
    add("strict_names", &O::strict_names, "takes pos_embed and cls_token by their full names only");
  });
}

ParamGroups layer_decay_groups(const ModelInfo& model, const OptimizerOptions& optimizer,
                               const LayerDecayOptions& options) {
  check_options(options);
  ParamGroupBuilder builder(optimizer, /*may_differ=*/true);
  const NamedTensors parameters = model.named_parameters();
  if (parameters.empty()) return {};
  const Depth depth_of_name = depth_of(model, options, parameters.front().first);
  const bool has_decay = builder.base().count("weight_decay") != 0;
  for (const auto& parameter : parameters) {
    if (!parameter.second.requires_grad()) continue;
    const LayerDepth depth = depth_of_name(parameter.first);
    const bool decayed = is_decayed(parameter.first, parameter.second, options.strict_names);
    const double scale = std::pow(options.decay_rate, static_cast<double>(depth.count - depth.id - 1));
    std::map<std::string, double> numbers = {{"lr", scale * builder.base().at("lr")}};
    if (has_decay) numbers["weight_decay"] = decayed ? builder.base().at("weight_decay") : 0.0;
    builder.add(parameter, std::move(numbers), c10::str("layer_", depth.id, decayed ? "_decay" : "_no_decay"));
  }
  return builder.finish();
}

}  // namespace duet
