#pragma once

#include "../registry.h"

#include <memory>

namespace duet {

// Factories of what examples/segmentation.yaml is made of; register_builtin_types() registers them.

std::shared_ptr<const Dataset> make_fashion_scenes(ConfigNode& node);
std::unique_ptr<Task> make_encoder_decoder(ConfigNode& node, ModelContext& context);

}  // namespace duet
