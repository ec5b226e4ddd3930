#pragma once

#include <cstdint>
#include <string>
#include "optim/groups/model_info.h"

namespace duet {

// Depths of the backbones that mmsegmentation knows, for layer-wise learning rates. `name` is a parameter's name within
// the backbone ("stages.2.5.weight"), empty for one outside, which counts as the head. `num_layers` is
// mmsegmentation's: ids run from 0 to num_layers + 1. They throw ConfigError for a name that says a block beyond them.

// ConvNeXt, layer_wise: downsample layers 0, 1, 2, 3 at 0, 2, 3, n; stage 0 at 1, stage 1 at 2, stage 2 at 3 and one
// further for every three blocks, stage 3 at n.
LayerDepth convnext_layer_depth(const std::string& name, int64_t num_layers);
// ConvNeXt, stage_wise: downsample layers at 0, stage s at s + 1.
LayerDepth convnext_stage_depth(const std::string& name, int64_t num_layers);
// BEiT, MAE, plain ViT: cls_token, mask_token, pos_embed and patch_embed at 0, layers.i (or blocks.i) at i + 1.
LayerDepth vit_layer_depth(const std::string& name, int64_t num_layers);

}  // namespace duet
