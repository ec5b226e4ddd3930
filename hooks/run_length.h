#pragma once

#include <duet/core/train_context.h>

#include <algorithm>
#include <cstdint>

namespace duet {

// Updates of the whole run by its limits, whichever comes first; 0: unknown. Private to hooks/.
inline int64_t run_length(const TrainContext& context) {
  const int64_t by_epochs = context.max_epochs * context.updates_per_epoch;
  if (context.max_updates <= 0) return by_epochs;
  return by_epochs > 0 ? std::min(context.max_updates, by_epochs) : context.max_updates;
}

}  // namespace duet
