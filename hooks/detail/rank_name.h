#pragma once

#include "distributed/communicator.h"
#include "core/train_context.h"

#include <string>

namespace duet {

// What tells apart what every rank writes: "rank-1"; empty where there is one process. Private to hooks/.
inline std::string rank_name(const TrainContext& context) {
  if (context.communicator->world_size() <= 1) return {};
  return "rank-" + std::to_string(context.communicator->rank());
}

}  // namespace duet
