#include "optim/schedules/schedule.h"

#include <c10/util/StringUtil.h>
#include "base/error.h"
#include "optim/schedules/detail/schedule_formula.h"

#include <algorithm>
#include <cmath>
#include <functional>

namespace duet {

namespace {

template <class Value>
void check(bool valid, const char* field, const Value& found, const char* expected) {
  if (valid) return;
  throw ConfigError(
      c10::str("[Schedule] found ", field, " ", found, ", expected ", expected, "; correct it in param_scheduler"));
}

void check_positive(const char* field, double value) {
  check(std::isfinite(value) && value > 0, field, value, "a number > 0");
}

void check_not_negative(const char* field, double value) {
  check(std::isfinite(value) && value >= 0, field, value, "a number >= 0");
}

void check_share(const char* field, double value) {
  check(value >= 0 && value <= 1, field, value, "a number in [0, 1]");
}

void check_count(const char* field, int64_t value) { check(value >= 0, field, value, "an integer >= 0"); }

void check_interval(const ScheduleOptions& o) {
  check(!o.param_name.empty(), "param_name", "''", "a number of the optimizer, such as lr");
  check(o.begin >= 0, "begin", o.begin, o.by_epoch ? "an epoch >= 0" : "a step >= 0");
  check(o.end == -1 || o.end > o.begin, "end", o.end,
        o.by_epoch ? "an epoch after begin, or -1 for the end of the run"
                   : "a step after begin, or -1 for the end of the run");
}

void check_floor(const ScheduleOptions& o) {
  check_not_negative("eta_min", o.eta_min);
  if (!o.eta_min_ratio) return;
  check_share("eta_min_ratio", *o.eta_min_ratio);
  check(o.eta_min == 0, "eta_min", o.eta_min, "one of eta_min and eta_min_ratio, not both");
}

void check_linear(const ScheduleOptions& o) {
  check_not_negative("start_factor", o.start_factor);
  check_not_negative("end_factor", o.end_factor);
}

void check_step(const ScheduleOptions& o) {
  check(o.step_size >= 1, "step_size", o.step_size, "at least 1 step");
  check_positive("gamma", o.gamma);
}

void check_multi_step(const ScheduleOptions& o) {
  const auto& marks = o.milestones;
  const bool ascending = std::adjacent_find(marks.begin(), marks.end(), std::greater_equal<>()) == marks.end();
  check(!marks.empty() && marks.front() >= 1 && ascending, "milestones", "(" + c10::Join(", ", marks) + ")",
        "one or more steps >= 1 in ascending order");
  check_positive("gamma", o.gamma);
}

void check_cosine(const ScheduleOptions& o) {
  check_count("T_max", o.T_max);
  check_floor(o);
}

void check_polynomial(const ScheduleOptions& o) {
  check_floor(o);
  check_positive("power", o.power);
}

void check_cosine_restart(const ScheduleOptions& o) {
  const bool long_enough = std::all_of(o.periods.begin(), o.periods.end(), [](int64_t n) { return n >= 1; });
  check(!o.periods.empty() && long_enough, "periods", "(" + c10::Join(", ", o.periods) + ")",
        "one or more lengths of at least 1 step");
  check(o.restart_weights.empty() || o.restart_weights.size() == o.periods.size(), "restart_weights",
        "(" + c10::Join(", ", o.restart_weights) + ")", "one weight for each of periods");
  for (const double weight : o.restart_weights) check_positive("restart_weights", weight);
  check_floor(o);
}

void check_one_cycle(const ScheduleOptions& o) {
  const OneCycleOptions& cycle = o.one_cycle;
  check_not_negative("eta_max", cycle.eta_max);
  check_count("total_steps", cycle.total_steps);
  check_share("pct_start", cycle.pct_start);
  check(cycle.anneal_strategy == "cos" || cycle.anneal_strategy == "linear", "anneal_strategy", cycle.anneal_strategy,
        "cos or linear");
  check_positive("div_factor", cycle.div_factor);
  check_positive("final_div_factor", cycle.final_div_factor);
  for (const auto& [field, value] :
       {std::pair{"base_momentum", cycle.base_momentum}, {"max_momentum", cycle.max_momentum}}) {
    check(value >= 0 && value < 1, field, value, "a number in [0, 1)");
  }
}

void check_wsd(const ScheduleOptions& o) {
  const WsdOptions& wsd = o.wsd;
  check_count("warmup_steps", wsd.warmup_steps);
  check_count("decay_steps", wsd.decay_steps);
  check_share("warmup_ratio", wsd.warmup_ratio);
  check_share("decay_ratio", wsd.decay_ratio);
  check(wsd.warmup_steps == 0 || wsd.warmup_ratio == 0, "warmup_ratio", wsd.warmup_ratio,
        "one of warmup_steps and warmup_ratio, not both");
  check((wsd.decay_steps == 0) != (wsd.decay_ratio == 0), "decay_steps", wsd.decay_steps,
        "either decay_steps or decay_ratio to be set");
  check(wsd.warmup_ratio + wsd.decay_ratio <= 1, "warmup_ratio + decay_ratio", wsd.warmup_ratio + wsd.decay_ratio,
        "at most 1");
  check(wsd.decay_type == "linear" || wsd.decay_type == "sqrt" || wsd.decay_type == "cosine", "decay_type",
        wsd.decay_type, "linear, sqrt or cosine");
  check_floor(o);
}

void check_plateau(const ScheduleOptions& o) {
  const PlateauOptions& plateau = o.plateau;
  check(!plateau.monitor.empty(), "monitor", "''", "the name of a metric, such as loss");
  check(plateau.rule == "less" || plateau.rule == "greater", "rule", plateau.rule, "less or greater");
  check(plateau.factor > 0 && plateau.factor < 1, "factor", plateau.factor, "a number in (0, 1)");
  check_count("patience", plateau.patience);
  check_not_negative("threshold", plateau.threshold);
  check(plateau.threshold_rule == "rel" || plateau.threshold_rule == "abs", "threshold_rule", plateau.threshold_rule,
        "rel or abs");
  check_count("cooldown", plateau.cooldown);
  check_not_negative("min_value", plateau.min_value);
  check_not_negative("eps", plateau.eps);
}

// A name that means two things would be read as the other one in a log.
void check_own(const ScheduleOptions& o) {
  const std::vector<std::string> types = schedule_types();
  check(!o.type.empty() && std::find(types.begin(), types.end(), o.type) == types.end(), "type", "'" + o.type + "'",
        "a name of its own beside a formula of its own");
}

}  // namespace

void ScheduleOptions::validate() const {
  const ScheduleFormula& formula = schedule_formula(*this);  // refuses an unknown type
  check_interval(*this);
  if (this->formula) return check_own(*this);
  if (type == "Constant") check_not_negative("factor", factor);
  if (type == "Linear") check_linear(*this);
  if (type == "Polynomial") check_polynomial(*this);
  if (type == "Step") check_step(*this);
  if (type == "MultiStep") check_multi_step(*this);
  if (type == "Exponential") check_positive("gamma", gamma);
  if (type == "Cosine") check_cosine(*this);
  if (type == "CosineRestart") check_cosine_restart(*this);
  if (type == "OneCycle") check_one_cycle(*this);
  if (type == "WSD") check_wsd(*this);
  if (formula.waits) check_plateau(*this);
}

}  // namespace duet
