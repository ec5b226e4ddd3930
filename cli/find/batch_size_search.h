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

struct BatchSizeSearch {
  int64_t most = 0;   // samples there are
  int64_t bytes = 0;  // that may be used
  // Nothing is run that would need more by the growth between the two largest so far, and the search ends where two
  // doublings bring less than 5 % more samples per second: on a CPU, where the system ends who takes too much, and a
  // larger batch soon is no faster.
  bool is_careful = false;
  std::vector<BatchSizeTrial> trials{};  // in the order of the search

  // Doubles from 2 until one does not fit, then halves the distance between it and the largest that does, to 1/16 of
  // that. `run` says what one takes.
  void search(const std::function<BatchSizeTrial(int64_t batch_size)>& run);
  int64_t largest() const;  // that fits; 0: none
  int64_t fastest() const;  // the smallest that has 95 % of the most samples per second

 private:
  bool looks_too_large(int64_t batch_size) const;
  bool is_level() const;
};

}  // namespace duet
