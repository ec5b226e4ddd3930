#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include "../optimizers/optimizer.h"
#include "model_info.h"
#include "param_group.h"

namespace duet {

// Learning rates that fall with the distance from the output, as mmsegmentation's LearningRateDecayOptimizerConstructor
// sets them: lr * decay_rate ^ (count - 1 - id), where a parameter's depth is `id` of `count`. Weight decay is 0 for
// 1-d parameters, for biases, pos_embed and cls_token.
//
// Depths come from `depth` if it is given, else from Task::layer_depth, else from the class of the module called
// "backbone", or of the whole model: ConvNeXt, BEiT, MAE, VisionTransformer (see layer_depth.h).
struct LayerDecayOptions {
  int64_t num_layers = 0;                 // layers of the backbone; needed for depths that come from its class
  double decay_rate = 0;                  // in (0, 1]
  std::string decay_type = "layer_wise";  // or stage_wise, for ConvNeXt
  // Takes pos_embed and cls_token, without weight decay, only by their full names, as mmsegmentation does:
  // "backbone.pos_embed" is then decayed.
  bool strict_names = false;
  std::function<std::optional<LayerDepth>(const std::string& name)> depth{};

  static const OptionFields& fields();
  // Throws ConfigError naming the field and its range.
  void validate() const { check_options(*this); }
};

// One group per depth and weight decay, called "layer_3_decay" or "layer_3_no_decay", in the order of their first
// parameters. Throws ConfigError if the depths of this model are not known, and says what to give.
ParamGroups layer_decay_groups(const ModelInfo& model, const OptimizerOptions& optimizer,
                               const LayerDecayOptions& options);

}  // namespace duet
