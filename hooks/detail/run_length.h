#pragma once

#include "core/train_context.h"

#include <algorithm>
#include <cstdint>

namespace duet {

// Steps of the whole run, at least those of one that is through; 0: unknown. Private to hooks/.
inline int64_t run_length(const TrainContext& context) {
  const int64_t planned = context.progress.planned_steps();
  const bool over =
      planned != 0 && context.progress.max_epochs > 0 && context.progress.epoch >= context.progress.max_epochs;
  return over ? std::max(planned, context.progress.step) : planned;
}

}  // namespace duet
