#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>
#include "../../base/options.h"

// Schedules of the optimizer's numbers: TrainerOptions::schedules = {Linear{.end = 100}, Cosine{.begin = 100}}.
//
// Each drives one number over [begin, end), as a closed form of s = step - begin with mmengine's formulas. v is the
// value in force at begin, v0 the group's initial value, T = end - begin - 1 the last s. Before begin a schedule does
// nothing; from end on the value of its last step stays. An interval of one step (T = 0) leaves v as it is, but Linear
// gives v * end_factor. What all have:
//
//   begin, end              the first step that it governs, and one past the last; -1: the end of the run, or of the
//                           schedule's own periods or total_steps
//   by_epoch                everything counted in steps counts epochs, and the value changes between epochs only ...
//   convert_to_iter_based   ... or, converted, at every step. The gamma of Exponential is converted too, so that an
//                           epoch decays by gamma
//   param_name              the number it drives; momentum means beta1 where an optimizer has no momentum
namespace duet {

// v * factor, and v again from s = T on; without an end, v * factor to the end of the run.
struct Constant {
  double factor = 1.0;
  int64_t begin = 0, end = -1;
  bool by_epoch = false, convert_to_iter_based = false;
  std::string param_name = "lr";
  static const OptionFields& fields();
};

// v * (start_factor + (end_factor - start_factor) * s / T)
struct Linear {
  double start_factor = 0.001;
  double end_factor = 1.0;
  int64_t begin = 0, end = -1;
  bool by_epoch = false, convert_to_iter_based = false;
  std::string param_name = "lr";
  static const OptionFields& fields();
};

// eta_min + (v - eta_min) * (1 - s / T) ^ power
struct Polynomial {
  double power = 1.0;
  double eta_min = 0.0;                      // lowest value ...
  std::optional<double> eta_min_ratio = {};  // ... or as a share of v0
  int64_t begin = 0, end = -1;
  bool by_epoch = false, convert_to_iter_based = false;
  std::string param_name = "lr";
  static const OptionFields& fields();
};

// v * gamma ^ (s / step_size, rounded down)
struct Step {
  int64_t step_size = 0;  // steps between decays
  double gamma = 0.1;     // factor of one decay
  int64_t begin = 0, end = -1;
  bool by_epoch = false, convert_to_iter_based = false;
  std::string param_name = "lr";
  static const OptionFields& fields();
};

// v * gamma ^ (number of milestones <= s)
struct MultiStep {
  std::vector<int64_t> milestones = {};  // steps after `begin` at which it decays, ascending
  double gamma = 0.1;
  int64_t begin = 0, end = -1;
  bool by_epoch = false, convert_to_iter_based = false;
  std::string param_name = "lr";
  static const OptionFields& fields();
};

// v * gamma ^ s
struct Exponential {
  double gamma = 0.1;
  int64_t begin = 0, end = -1;
  bool by_epoch = false, convert_to_iter_based = false;
  std::string param_name = "lr";
  static const OptionFields& fields();
};

// eta_min + (v - eta_min) * (1 + cos(pi * s / T_max)) / 2; after T_max it swings up to v0 and back
struct Cosine {
  int64_t T_max = 0;  // half a period; 0: end - begin
  double eta_min = 0.0;
  std::optional<double> eta_min_ratio = {};
  int64_t begin = 0, end = -1;
  bool by_epoch = false, convert_to_iter_based = false;
  std::string param_name = "lr";
  static const OptionFields& fields();
};

// A Cosine from v0 * restart_weights[i] over each of periods; then it stays.
struct CosineRestart {
  std::vector<int64_t> periods = {};
  std::vector<double> restart_weights = {};  // one per period; empty: 1
  double eta_min = 0.0;
  std::optional<double> eta_min_ratio = {};
  int64_t begin = 0, end = -1;
  bool by_epoch = false, convert_to_iter_based = false;
  std::string param_name = "lr";
  static const OptionFields& fields();
};

// From low to peak to almost nothing, whatever v is; of momentum: from high to low to high. The names and defaults of
// torch's OneCycleLR.
struct OneCycle {
  double eta_max = 0;                   // peak of every group; 0: the group's initial value
  int64_t total_steps = 0;              // length of the cycle; 0: the whole interval
  double pct_start = 0.3;               // share of the cycle that rises
  std::string anneal_strategy = "cos";  // or linear
  double div_factor = 25;               // it begins at peak / div_factor ...
  double final_div_factor = 1e4;        // ... and ends at that / final_div_factor
  bool three_phase = false;             // down to the beginning as fast as up, then to the end
  bool cycle_momentum = false;          // also drives momentum (or beta1), which is low where the rate is high
  double base_momentum = 0.85, max_momentum = 0.95;
  int64_t begin = 0, end = -1;
  bool by_epoch = false, convert_to_iter_based = false;
  std::string param_name = "lr";
  static const OptionFields& fields();
};

// Warm-up, stable, decay: v * (s + 1) / warm-up; v; then to eta_min, which its last step reaches. Each length in steps,
// or as a share of the interval; what is left is stable.
struct WSD {
  int64_t warmup_steps = 0;
  double warmup_ratio = 0;
  int64_t decay_steps = 0;
  double decay_ratio = 0;
  std::string decay_type = "linear";  // linear, sqrt, cosine
  double eta_min = 0.0;
  std::optional<double> eta_min_ratio = {};
  int64_t begin = 0, end = -1;
  bool by_epoch = false, convert_to_iter_based = false;
  std::string param_name = "lr";
  static const OptionFields& fields();
};

// v * factor ^ reductions so far. Its time is counted in validations; mmengine's names and defaults.
struct ReduceOnPlateau {
  std::string monitor = "loss";  // a metric of the validation
  std::string rule{};            // less or greater: what is better; empty: less, an error if the name says greater
  double factor = 0.1;           // of one reduction
  int64_t patience = 10;         // validations without improvement that are let pass
  double threshold = 1e-4;       // least improvement that counts ...
  std::string threshold_rule = "rel";  // ... relative to the best value, or abs
  int64_t cooldown = 0;                // validations after a reduction that do not count
  double min_value = 0;                // never reduced below
  double eps = 1e-8;                   // smaller reductions are left out
  int64_t begin = 0, end = -1;
  bool by_epoch = false, convert_to_iter_based = false;
  std::string param_name = "lr";
  static const OptionFields& fields();
};

constexpr int64_t kEndless = std::numeric_limits<int64_t>::max();

// Where a schedule stands: step s of [0, length), the value it took over at step 0, and the group's initial value.
struct ScheduleStep {
  int64_t s = 0;
  int64_t length = kEndless;
  double taken_over = 0;
  double initial = 0;
};

// A schedule of your own: the value at a step, as a function of nothing else. It governs its interval alone and needs
// an end, its own or the run's.
struct CustomSchedule {
  std::string type{};  // a name of its own, for messages
  std::function<double(const ScheduleStep& at)> formula{};
  int64_t begin = 0, end = -1;
  bool by_epoch = false, convert_to_iter_based = false;
  std::string param_name = "lr";
  static const OptionFields& fields();
};

using Schedule = std::variant<Constant, Linear, Polynomial, Step, MultiStep, Exponential, Cosine, CosineRestart,
                              OneCycle, WSD, ReduceOnPlateau, CustomSchedule>;

// "Cosine"
const std::string& type_of(const Schedule& schedule);
// Throws ConfigError naming the field, what it is and its range.
void check_schedule(const Schedule& schedule);

// What schedules need to know of a run. 0: unknown.
struct ScheduleRun {
  int64_t steps = 0;  // of the whole run: the end of schedules that name none
  int64_t steps_per_epoch = 0;
};

struct SchedulePiece;

// The schedules that drive one number, laid over a run: its value as a function of the step. Copies are cheap.
class ScheduleCurve {
 public:
  // Takes those of `schedules` whose param_name is `param_name`; a OneCycle with cycle_momentum is one of momentum too.
  // Throws ConfigError for one that does not fit the run.
  ScheduleCurve(const std::vector<Schedule>& schedules, const std::string& param_name, const ScheduleRun& run);

  // Value for step `step` (from 0) of a group whose initial value is `initial`. Schedules chain in order of begin.
  // `reductions`: what each ReduceOnPlateau of this curve has multiplied the group's value by so far, in list order;
  // empty: nothing.
  double at(int64_t step, double initial, const std::vector<double>& reductions = {}) const;

 private:
  std::shared_ptr<const std::vector<SchedulePiece>> pieces_;
};

}  // namespace duet
