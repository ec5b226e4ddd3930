#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include "../base/options.h"
#include "../core/hook.h"

namespace duet {

struct EarlyStoppingHookOptions {
  std::string monitor = "";  // metric to watch; must be given
  std::string rule = "";     // "greater" or "less" is better; empty: by the metric's name, as metrics/metric.h says
  // >= 0: a value counts as improvement if it is better than the best one by at least this much; 0: by anything at all.
  // Not mmengine's 0.1: that is right for percents, and would end most runs whose metrics lie in [0, 1].
  double min_delta = 0;
  int64_t patience = 5;                          // >= 1: validations without improvement that end training
  bool strict = true;                            // a validation without the metric is an error; false: a warning, once
  bool check_finite = true;                      // NaN or infinity ends training; false: it is no improvement
  std::optional<double> stopping_threshold{};    // a better value ends training: good enough
  std::optional<double> divergence_threshold{};  // a worse value ends training: hopeless

  static const OptionFields& fields();
};

// Ends training when a metric of the validations no longer improves, as mmengine's hook of that name does; the two
// thresholds are Lightning's. The best value and the validations since then are in a checkpoint, so that a resume in
// the middle of the patience does not begin it anew. Validations outside of training do not count.
class EarlyStoppingHook : public Hook {
 public:
  // Throws ConfigError for options out of range, or if the metric's name does not say what is better and no rule does.
  explicit EarlyStoppingHook(EarlyStoppingHookOptions options);

  std::string name() const override { return "early_stopping"; }
  int priority() const override { return kLowest; }

  // A run that was stopped here and is resumed stops again at once, unless patience was raised.
  void before_train(TrainContext& context) override;
  // Throws ConfigError that lists the metrics if the monitored one is not among them.
  void after_val_epoch(TrainContext& context) override;

  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

 private:
  std::optional<double> monitored(const TrainContext& context);
  // Why training ends with this value; empty: it goes on. Takes the value in.
  std::string judge(double value);
  bool better(double a, double b) const { return less_ ? a < b : a > b; }
  bool improves(double value) const;

  EarlyStoppingHookOptions options_;
  bool less_;  // is better
  std::optional<double> best_;
  int64_t waited_ = 0;
  bool warned_ = false;
};

}  // namespace duet
