#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace duet {

// One learning-rate schedule over updates [begin, end): a closed form of the update's index.
struct ScheduleOptions {
  std::string type = "Constant";  // Constant, Linear, Step, MultiStep, Cosine, Polynomial
  int64_t begin = 0;              // first update it governs
  int64_t end = -1;               // one past the last; -1: the end of the run
  double factor = 1.0;            // Constant
  double start_factor = 0.001;    // Linear: factor at begin ...
  double end_factor = 1.0;        // ... and at the last update of [begin, end)
  int64_t step_size = 0;          // Step: updates between decays
  std::vector<int64_t> milestones;  // MultiStep: updates after `begin` at which it decays
  double gamma = 0.1;             // Step, MultiStep: factor of one decay
  double eta_min = 0.0;           // Cosine, Polynomial: lowest learning rate (absolute)
  double power = 1.0;             // Polynomial

  // Throws ConfigError naming the field, what it is and its range.
  void validate() const;
};

// Learning rate of update `update` (from 0) for a group whose initial rate is `initial_lr`: schedules chain in
// order of begin, as mmengine's param schedulers do; after its end a schedule keeps its last value.
// `run_length`: updates of the whole run, the end of schedules that name none.
double scheduled_lr(const std::vector<ScheduleOptions>& schedules, int64_t update, double initial_lr,
                    int64_t run_length);

// Throws ConfigError if schedules overlap or one that needs an end has none.
void validate_schedules(const std::vector<ScheduleOptions>& schedules, int64_t run_length);

}  // namespace duet
