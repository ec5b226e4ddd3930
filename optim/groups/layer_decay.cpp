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

using Depth = std::function<LayerDepth(const std::string&)>;

[[noreturn]] void refuse(const std::string& found) {
  throw ConfigError("[LayerDecay] " + found +
                    "; set num_layers to what the backbone has, or give the depths by Task::layer_depth (or "
                    "LayerDecayOptions::depth): for every parameter its depth, 0 to count - 1");
}

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
  refuse(c10::str("found the parameter '", name, "', expected a number at place ", index, " of its name"));
}

// Depths within the backbones that mmsegmentation knows, for a parameter's name there ("stages.2.5.weight"). Its
// num_layers: ids run from 0 to num_layers + 1, which is the head.

// ConvNeXt, layer_wise: downsample layers 0, 1, 2, 3 at 0, 2, 3, n; stage 0 at 1, stage 1 at 2, stage 2 at 3 and one
// further for every three blocks, stage 3 at n.
int64_t convnext_layer_id(const std::string& name, int64_t num_layers) {
  const auto of_stage = [&](int64_t stage, const std::array<int64_t, 4>& ids) {
    if (stage >= 4) refuse(c10::str("found stage ", stage, " in '", name, "', expected at most 3 as ConvNeXt has"));
    return ids[static_cast<std::size_t>(stage)];
  };
  if (is_token(name)) return 0;
  if (const auto layer = number_in(name, "downsample_layers", 1)) return of_stage(*layer, {0, 2, 3, num_layers});
  const auto stage = number_in(name, "stages", 1);
  return stage ? of_stage(*stage, {1, 2, 3 + *number_in(name, "stages", 2) / 3, num_layers}) : num_layers + 1;
}

// ConvNeXt, stage_wise: downsample layers at 0, stage s at s + 1.
int64_t convnext_stage_id(const std::string& name, int64_t num_layers) {
  if (is_token(name) || name.rfind("downsample_layers", 0) == 0) return 0;
  const auto stage = number_in(name, "stages", 1);
  return stage ? *stage + 1 : num_layers + 1;
}

// BEiT, MAE, plain ViT: cls_token, mask_token, pos_embed and patch_embed at 0, layers.i (or blocks.i) at i + 1.
int64_t vit_layer_id(const std::string& name, int64_t num_layers) {
  if (is_token(name) || name.rfind("patch_embed", 0) == 0) return 0;
  auto block = number_in(name, "layers", 1);
  if (!block) block = number_in(name, "blocks", 1);
  return block ? *block + 1 : num_layers + 1;
}

using BackboneId = int64_t (*)(const std::string& name, int64_t num_layers);

// The rule for a class of backbones. LibTorch's module classes end in Impl.
BackboneId rule_for(std::string type, const LayerDecayOptions& options) {
  const auto holds = [&type](const char* part) { return type.find(part) != std::string::npos; };
  const bool stage_wise = options.decay_type == "stage_wise";
  if (holds("ConvNeXt")) return stage_wise ? convnext_stage_id : convnext_layer_id;
  if (type.size() > 4 && type.ends_with("Impl")) type.resize(type.size() - 4);
  if (holds("BEiT") || holds("MAE") || type == "VisionTransformer" || type == "ViT") {
    if (!stage_wise) return vit_layer_id;
    throw ConfigError("[LayerDecay] decay_type is stage_wise for a '" + type +
                      "', which has no stages; set layer_wise");
  }
  refuse("the backbone is a '" + type + "', expected ConvNeXt, BEiT, MAE or VisionTransformer");
}

Depth depth_of_backbone(const ModelInfo& model, const LayerDecayOptions& options) {
  const std::vector<ModuleInfo> modules = model.modules();
  const auto at_path = [&modules](const char* path) {
    return std::find_if(modules.begin(), modules.end(), [path](const ModuleInfo& m) { return m.path == path; });
  };
  auto backbone = at_path("backbone");
  const std::string prefix = backbone == modules.end() ? "" : "backbone.";
  if (backbone == modules.end()) backbone = at_path("");
  if (backbone == modules.end()) refuse("the task lists no modules, so the depths are not known");
  const BackboneId rule = rule_for(backbone->type, options);
  if (options.num_layers == 0) refuse("num_layers is missing for a '" + backbone->type + "'");
  return [rule, prefix, count = options.num_layers](const std::string& name) {
    const int64_t id = rule(name.rfind(prefix, 0) == 0 ? name.substr(prefix.size()) : std::string(), count);
    if (id >= count + 2) {
      refuse(c10::str("'", name, "' lies at depth ", id, ", but num_layers is ", count, ", which allows at most ",
                      count + 1));
    }
    return LayerDepth{id, count + 2};
  };
}

Depth depth_of(const ModelInfo& model, const LayerDecayOptions& options, const std::string& any_name) {
  std::function<std::optional<LayerDepth>(const std::string&)> given = options.depth;
  if (!given && model.layer_depth(any_name))
    given = [&model](const std::string& name) { return model.layer_depth(name); };
  if (!given) return depth_of_backbone(model, options);
  return [given](const std::string& name) {
    const std::optional<LayerDepth> depth = given(name);
    if (!depth) refuse("layer_depth gives no depth for '" + name + "', but does for others");
    if (depth->id >= 0 && depth->id < depth->count) return *depth;
    refuse(c10::str("layer_depth gives depth ", depth->id, " of ", depth->count, " for '", name, "'"));
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
