#pragma once

#include <duet/core/train_context.h>

#include <cstdint>

namespace duet {

// Updates of the whole run; 0: unknown. Private to hooks/.
inline int64_t run_length(const TrainContext& context) {
  return planned_updates(context);
}

}  // namespace duet
