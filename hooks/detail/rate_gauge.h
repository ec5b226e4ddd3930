#pragma once

#include "core/train_context.h"

namespace duet {

// Publishes the first group's learning rate as "lr", if there is one. Private to hooks/.
inline void publish_rate(TrainContext& context) {
  HyperParameters& numbers = context.hyper_parameters;
  if (numbers.group_count() == 0 || !numbers.has(0, "lr")) return;
  context.log.gauge("lr", [&numbers] { return numbers.get(0, "lr"); });
}

}  // namespace duet
