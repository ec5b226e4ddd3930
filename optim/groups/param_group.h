#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>
#include "../../base/batch.h"
#include "../optimizers/optimizer_options.h"

namespace torch::nn {
class Module;
}

namespace duet {

// Parameters that an optimizer treats alike.
struct ParamGroup {
  std::string name;                       // for tables and messages: "decay", "layer_3_no_decay"; may be empty
  NamedTensors parameters;                // trainable ones, each in exactly one group
  std::map<std::string, double> numbers;  // overrides of the optimizer's numbers: "lr", "weight_decay", "momentum",
                                          // "beta1", "beta2", ...; what is absent stays the optimizer's own
};
using ParamGroups = std::vector<ParamGroup>;

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
  std::string type;  // class name without namespaces: "BatchNorm2dImpl"; of a layer that Python made "BatchNorm2d"
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
  // The layers that the parameters belong to, which show norms and convolutions; none if they are not known.
  virtual std::vector<ModuleInfo> modules() const { return {}; }
  // Depth of the parameter called `name`, for layer-wise learning rates; nothing if the model gives no depths.
  virtual std::optional<LayerDepth> layer_depth(const std::string& /*name*/) const { return std::nullopt; }
};

// The module and all below it. A C++ layer counts as a norm or convolution if it is one or derives from one.
std::vector<ModuleInfo> modules_of(const torch::nn::Module& module);

// How a constructor of parameter groups is given to TrainerOptions::param_groups.
using ParamGroupsFn = std::function<ParamGroups(const ModelInfo&, const OptimizerOptions&)>;

// Options of the parameters whose full name holds a key.
struct CustomKey {
  double lr_mult = 1.0;     // of the optimizer's lr
  double decay_mult = 1.0;  // of its weight_decay
  // Numbers as they are to be, whatever the multipliers: "lr", "weight_decay", "momentum", "beta1", ...
  std::map<std::string, double> numbers{};
};

// The paramwise_cfg of mmengine's DefaultOptimWrapperConstructor, with its names and its rules:
//
// 1. The longest of custom_keys (of equally long ones the first in the alphabet) that is a part of
//    "<layer>.<parameter>" decides; no other rule then applies. A parameter of the whole model is ".<parameter>".
// 2. Otherwise the learning rate: a bias that belongs to no norm has bias_lr_mult; the offset convolution
//    ("conv_offset") of a deformable one has dcn_offset_lr_mult.
// 3. And the weight decay, by the first of these that is set and fits: norm_decay_mult (weight and bias of a norm),
//    bias_decay_mult, dwconv_decay_mult (a depthwise 2-d convolution), flat_decay_mult (any 1-d parameter).
//    bias_decay_mult and flat_decay_mult leave the layers inside a deformable convolution alone.
//
// A tied parameter counts under its first name. What is not trainable is in no group.
struct ParamwiseOptions {
  std::map<std::string, CustomKey> custom_keys{};
  std::optional<double> norm_decay_mult{}, bias_lr_mult{}, bias_decay_mult{}, dwconv_decay_mult{}, flat_decay_mult{},
      dcn_offset_lr_mult{};
  bool bypass_duplicate = false;  // do not warn of tied parameters whose names call for different options
  // Rules 2 and 3 multiply what the custom key gives, so that a slower backbone's norms can stay without decay.
  bool compose = false;

  static const OptionFields& fields();
};

// Groups of equal options, in the order of their first parameters. Throws ConfigError for options that cannot work with
// this task or optimizer; warns of custom keys that fit no parameter.
ParamGroups paramwise_groups(const ModelInfo& model, const OptimizerOptions& optimizer,
                             const ParamwiseOptions& options);

// Learning rates that fall with the distance from the output, as mmsegmentation's LearningRateDecayOptimizerConstructor
// sets them: lr * decay_rate ^ (count - 1 - id), where a parameter's depth is `id` of `count`. Weight decay is 0 for
// 1-d parameters, for biases, pos_embed and cls_token.
//
// Depths come from `depth` if it is given, else from Task::layer_depth, else from the class of the module called
// "backbone", or of the whole model: ConvNeXt, BEiT, MAE, VisionTransformer.
struct LayerDecayOptions {
  int64_t num_layers = 0;                 // layers of the backbone; needed for depths that come from its class
  double decay_rate = 0;                  // in (0, 1]
  std::string decay_type = "layer_wise";  // or stage_wise, for ConvNeXt
  // Takes pos_embed and cls_token, without weight decay, only by their full names, as mmsegmentation does:
  // "backbone.pos_embed" is then decayed.
  bool strict_names = false;
  std::function<std::optional<LayerDepth>(const std::string& name)> depth{};

  static const OptionFields& fields();
};

// One group per depth and weight decay, called "layer_3_decay" or "layer_3_no_decay", in the order of their first
// parameters. Throws ConfigError if the depths of this model are not known, and says what to give.
ParamGroups layer_decay_groups(const ModelInfo& model, const OptimizerOptions& optimizer,
                               const LayerDecayOptions& options);

// The numbers of an optimizer that may change during a run, per parameter group ("lr", "weight_decay",
// "momentum", ...). A new value takes effect at the next step, in both modes.
class HyperParameters {
 public:
  virtual ~HyperParameters() = default;
  virtual std::size_t group_count() const = 0;
  // Every name that some group has.
  virtual std::vector<std::string> names() const = 0;
  virtual bool has(std::size_t group, const std::string& name) const = 0;
  // The value that the last step used, or that was set since. Both throw ConfigError for a group or a name that is not
  // there; set() for a value outside the number's range too.
  virtual double get(std::size_t group, const std::string& name) const = 0;
  virtual void set(std::size_t group, const std::string& name, double value) = 0;

  // The value of a number before the step that follows `applied` steps.
  using Curve = std::function<double(std::size_t group, int64_t applied)>;
  // From now on `name` follows `curve` in every group that has it: a function of its arguments alone, since it is asked
  // for many steps ahead. What depends on anything else is for set(), before each step. Steps that were skipped do not
  // count, and finding that out costs no read from the device. A set() in between holds for the next step only.
  virtual void set_schedule(const std::string& name, Curve curve) = 0;
  // The number keeps the value it has.
  virtual void clear_schedule(const std::string& name) = 0;
  // Steps applied so far; reads the device if steps may be skipped.
  virtual int64_t applied() const = 0;
};

}  // namespace duet
