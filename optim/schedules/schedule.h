#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>
#include "../../base/options.h"

namespace duet {

// OneCycle, with the names and defaults of torch's OneCycleLR.
struct OneCycleOptions {
  double eta_max = 0;                   // peak of every group; 0: the group's initial value
  int64_t total_steps = 0;              // length of the cycle; 0: the whole interval
  double pct_start = 0.3;               // share of the cycle that rises
  std::string anneal_strategy = "cos";  // or linear
  double div_factor = 25;               // it begins at peak / div_factor ...
  double final_div_factor = 1e4;        // ... and ends at that / final_div_factor
  bool three_phase = false;             // down to the beginning as fast as up, then to the end
  bool cycle_momentum = false;          // also drives momentum (or beta1), which is low where the rate is high
  double base_momentum = 0.85, max_momentum = 0.95;
};

// WSD: warm-up, stable, decay. Each length in steps, or as a share of the interval; what is left is stable.
struct WsdOptions {
  int64_t warmup_steps = 0;
  double warmup_ratio = 0;
  int64_t decay_steps = 0;
  double decay_ratio = 0;
  std::string decay_type = "linear";  // linear, sqrt, cosine
};

// ReduceOnPlateau, with mmengine's names and defaults. Its time is counted in validations.
struct PlateauOptions {
  std::string monitor = "loss";        // a metric of the validation
  std::string rule = "less";           // or greater: what is better
  double factor = 0.1;                 // of one reduction
  int64_t patience = 10;               // validations without improvement that are let pass
  double threshold = 1e-4;             // least improvement that counts ...
  std::string threshold_rule = "rel";  // ... relative to the best value, or abs
  int64_t cooldown = 0;                // validations after a reduction that do not count
  double min_value = 0;                // never reduced below
  double eps = 1e-8;                   // smaller reductions are left out
};

constexpr int64_t kEndless = std::numeric_limits<int64_t>::max();

// Where a schedule stands: step s of [0, length), the value it took over at step 0, and the group's initial value.
struct ScheduleStep {
  int64_t s = 0;
  int64_t length = kEndless;
  double taken_over = 0;
  double initial = 0;
};

// One schedule of one number of the optimizer over [begin, end), as a closed form of s = step - begin with mmengine's
// formulas. v is the value in force at begin, v0 the group's initial value, T = end - begin - 1 its last s:
//
//   Constant       v * factor, and v again from s = T on; without an end, v * factor to the end of the run
//   Linear         v * (start_factor + (end_factor - start_factor) * s / T)
//   Polynomial     eta_min + (v - eta_min) * (1 - s / T) ^ power
//   Step           v * gamma ^ (s / step_size, rounded down)
//   MultiStep      v * gamma ^ (number of milestones <= s)
//   Exponential    v * gamma ^ s
//   Cosine         eta_min + (v - eta_min) * (1 + cos(pi * s / T_max)) / 2; after T_max it swings up to v0 and back
//   CosineRestart  a Cosine from v0 * restart_weights[i] over each of periods; then it stays
//   OneCycle       from low to peak to almost nothing, whatever v is; of momentum: from high to low to high
//   WSD            v * (s + 1) / warm-up; v; then to eta_min, which its last step reaches
//   ReduceOnPlateau  v * factor ^ reductions so far
//
// Before begin it does nothing; from end on the value of its last step stays. An interval of one step (T = 0)
// leaves v as it is, but Linear gives v * end_factor.
struct ScheduleOptions {
  std::string type = "Constant";
  std::string param_name = "lr";  // the number it drives; momentum means beta1 where an optimizer has no momentum
  int64_t begin = 0;              // first step it governs
  int64_t end = -1;               // one past the last; -1: the end of the run, or of its own periods or total_steps
  // Everything counted in steps counts epochs, and the value changes between epochs only ...
  bool by_epoch = false;
  // ... or, converted, at every step. The gamma of Exponential is converted too, so that an epoch decays by gamma.
  bool convert_to_iter_based = false;

  double factor = 1.0;                       // Constant
  double start_factor = 0.001;               // Linear: factor at begin ...
  double end_factor = 1.0;                   // ... and at the last step of [begin, end)
  double power = 1.0;                        // Polynomial
  int64_t step_size = 0;                     // Step: steps between decays
  std::vector<int64_t> milestones = {};      // MultiStep: steps after `begin` at which it decays, ascending
  double gamma = 0.1;                        // Step, MultiStep, Exponential: factor of one decay
  int64_t T_max = 0;                         // Cosine: half a period; 0: end - begin
  std::vector<int64_t> periods = {};         // CosineRestart
  std::vector<double> restart_weights = {};  // CosineRestart: one per period; empty: 1
  double eta_min = 0.0;                      // Polynomial, Cosine, CosineRestart, WSD: lowest value ...
  std::optional<double> eta_min_ratio = {};  // ... or as a share of v0
  OneCycleOptions one_cycle = {};
  WsdOptions wsd = {};
  PlateauOptions plateau = {};
  // A schedule of your own under a type name of its own: the value at a step, as a function of nothing else. It governs
  // its interval alone and needs an end, its own or the run's.
  std::function<double(const ScheduleStep& at)> formula = {};

  // What a schedule of this type has; the interval alone for one of your own.
  static const OptionFields& fields(const std::string& type);
  // Throws ConfigError naming the field, what it is and its range.
  void validate() const;
};

}  // namespace duet
