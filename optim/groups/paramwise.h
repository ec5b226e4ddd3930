#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include "../optimizers/optimizer.h"
#include "model_info.h"
#include "param_group.h"

namespace duet {

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
// "<layer>.<parameter>"
//    decides; no other rule then applies. A parameter of the whole model itself is called ".<parameter>".
// 2. Otherwise the learning rate: a bias that belongs to no norm has bias_lr_mult; the offset convolution
// ("conv_offset")
//    of a deformable one has dcn_offset_lr_mult.
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
  // Throws ConfigError naming the field and its range.
  void validate() const { check_options(*this); }
};

// Groups of equal options, in the order of their first parameters. Throws ConfigError for options that cannot work with
// this task or optimizer; warns of custom keys that fit no parameter, with near names.
ParamGroups paramwise_groups(const ModelInfo& model, const OptimizerOptions& optimizer,
                             const ParamwiseOptions& options);

}  // namespace duet
