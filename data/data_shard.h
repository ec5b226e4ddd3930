#pragma once

#include <cstdint>
#include <string>

namespace duet {

// One rank's part of data that several ranks read together.
struct DataShard {
  int64_t rank = 0, world_size = 1;
  std::string order{};  // what must be alike on all ranks, a line for each thing: "batch_size: 16\n"
};

}  // namespace duet
