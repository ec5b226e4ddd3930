#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace duet {

// One learning-rate schedule over updates [begin, end): a closed form of s = update - begin, with mmengine's formulas
// (T = end - begin - 1, so s = T is its last update). At s = 0 it takes over the rate v that is in force then:
//
//   Constant    v * factor, and v again from s = T on; without an end, v * factor to the end of the run
//   Linear      v * (start_factor + (end_factor - start_factor) * s / T): end_factor exactly at its last update
//   Step        v * gamma ^ (s / step_size, rounded down)
//   MultiStep   v * gamma ^ (number of milestones <= s)
//   Cosine      eta_min + (v - eta_min) * (1 + cos(pi * s / (T + 1))) / 2: eta_min would be reached at `end` itself
//   Polynomial  eta_min + (v - eta_min) * (1 - s / T) ^ power: eta_min exactly at its last update
//
// Before begin it does nothing; from end on the value of its last update stays. An interval of one update (T = 0)
// leaves v as it is, but Linear gives v * end_factor.
struct ScheduleOptions {
  std::string type = "Constant";         // Constant, Linear, Step, MultiStep, Cosine, Polynomial
  int64_t begin = 0;                     // first update it governs
  int64_t end = -1;                      // one past the last; -1: the end of the run
  double factor = 1.0;                   // Constant
  double start_factor = 0.001;           // Linear: factor at begin ...
  double end_factor = 1.0;               // ... and at the last update of [begin, end)
  int64_t step_size = 0;                 // Step: updates between decays
  std::vector<int64_t> milestones = {};  // MultiStep: updates after `begin` at which it decays, ascending
  double gamma = 0.1;                    // Step, MultiStep: factor of one decay
  double eta_min = 0.0;                  // Cosine, Polynomial: lowest learning rate (absolute)
  double power = 1.0;                    // Polynomial

  // Throws ConfigError naming the field, what it is and its range.
  void validate() const;
};

// Learning rate of update `update` (from 0) for a group whose initial rate is `initial_lr`: schedules chain in
// order of begin, as mmengine's param schedulers do; after its end a schedule keeps its last value.
// `run_length`: updates of the whole run, the end of schedules that name none; 0: unknown.
double scheduled_lr(const std::vector<ScheduleOptions>& schedules, int64_t update, double initial_lr,
                    int64_t run_length);

// Validates each, and throws ConfigError if one that needs an end has none (Linear, Cosine, Polynomial in a run of
// unknown length), or if a Cosine or Polynomial overlaps another schedule. The others only multiply: they may overlap.
void validate_schedules(const std::vector<ScheduleOptions>& schedules, int64_t run_length);

}  // namespace duet
