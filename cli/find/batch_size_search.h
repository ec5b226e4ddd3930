#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace duet {

// A few steps with one batch size.
struct BatchSizeTrial {
  int64_t batch_size = 0;
  bool fits = false;
  int64_t bytes = 0;              // most in use; 0: not measured, memory ran out
  double samples_per_second = 0;  // 0: not run
};

// Tries 2, 4, 8, ... samples until one does not fit into `bytes`, or all there are (`most`), then halves the distance
// between it and the largest that fits, to 1/16 of that. `is_careful`, for a CPU, whose system ends who takes too much:
// runs nothing that needs too much by the growth so far, and stops where two doublings bring less than 5 % of speed.
std::vector<BatchSizeTrial> search_batch_size(int64_t most, int64_t bytes, bool is_careful,
                                              const std::function<BatchSizeTrial(int64_t batch_size)>& run);

}  // namespace duet
