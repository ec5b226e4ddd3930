#include "optim/schedules/schedule.h"
#include <algorithm>
#include <utility>
#include <c10/util/StringUtil.h>
#include "base/detail/text.h"
#include "base/error.h"
#include "optim/schedules/detail/schedule_rules.h"

// The schedules' options, described; the formulas stand in schedule_formula.cpp.

namespace duet {

namespace {

template <class Value>
void check(bool valid, const char* field, const Value& found, const std::string& expected) {
  if (valid) return;
  throw ConfigError(c10::str("[Schedule] found ", field, " ", found, ", expected ", expected,
                             "; correct it in param_scheduler (TrainerOptions::schedules)"));
}

// No run has more steps; products of two of these stay within int64.
const Range kLengths{.high = 2147483648.0};

// The fields that all have, then those that `add_fields(add)` adds.
template <class T, class AddFields>
const OptionFields& described_schedule(AddFields add_fields) {
  return described<T>("Schedule", [add_fields](const FieldAdder<T>& add) {
    add("param_name", &T::param_name, "the number that it drives").read_by_hand("text", "lr");
    add("begin", &T::begin, "first step that it governs").in(at_least(0));
    add("end", &T::end, "one past its last step; -1: the end of the run").in(at_least(-1));
    add("by_epoch", &T::by_epoch, "counts epochs, not steps");
    add("convert_to_iter_based", &T::convert_to_iter_based,
        "epochs become steps, so that the value changes within them");
    add.rule([](const T& o) {
      check(!o.param_name.empty(), "param_name", "''", "a number of the optimizer, such as lr");
      check(o.end == -1 || o.end > o.begin, "end", o.end,
            c10::str(o.by_epoch ? "an epoch" : "a step", " after begin, or -1 for the end of the run"));
    });
    add_fields(add);
  });
}

template <class T>
OptionField& add_gamma(const FieldAdder<T>& add) {
  return add("gamma", &T::gamma, "factor of one decay").in(above(0));
}

template <class T>
void add_floor(const FieldAdder<T>& add) {
  add("eta_min_ratio", &T::eta_min_ratio, "lowest value as a share of the initial one").in(between(0, 1));
  add("eta_min", &T::eta_min, "lowest value").in(at_least(0));
  add.rule([](const T& o) {
    check(!o.eta_min_ratio || o.eta_min == 0, "eta_min", o.eta_min, "one of eta_min and eta_min_ratio, not both");
  });
}

void check_milestones(const MultiStep& o) {
  const auto& marks = o.milestones;
  const bool ascending = std::adjacent_find(marks.begin(), marks.end(), std::greater_equal<>()) == marks.end();
  check(!marks.empty() && marks.front() >= 1 && ascending, "milestones", "(" + c10::Join(", ", marks) + ")",
        "one or more steps >= 1 in ascending order");
}

void check_periods(const CosineRestart& o) {
  const bool long_enough = std::all_of(o.periods.begin(), o.periods.end(), [](int64_t n) { return n >= 1; });
  check(!o.periods.empty() && long_enough, "periods", "(" + c10::Join(", ", o.periods) + ")",
        "one or more lengths of at least 1 step");
  check(o.restart_weights.empty() || o.restart_weights.size() == o.periods.size(), "restart_weights",
        "(" + c10::Join(", ", o.restart_weights) + ")", "one weight for each of periods");
}

void check_lengths(const WSD& o) {
  check(o.warmup_steps == 0 || o.warmup_ratio == 0, "warmup_ratio", o.warmup_ratio,
        "one of warmup_steps and warmup_ratio, not both");
  check((o.decay_steps == 0) != (o.decay_ratio == 0), "decay_steps", o.decay_steps,
        "either decay_steps or decay_ratio to be set");
  check(o.warmup_ratio + o.decay_ratio <= 1, "warmup_ratio + decay_ratio", o.warmup_ratio + o.decay_ratio, "at most 1");
}

}  // namespace

const OptionFields& Constant::fields() {
  return described_schedule<Constant>(
      [](const auto& add) { add("factor", &Constant::factor, "factor of the value").in(at_least(0)); });
}

const OptionFields& Linear::fields() {
  return described_schedule<Linear>([](const auto& add) {
    add("start_factor", &Linear::start_factor, "factor at begin").in(at_least(0));
    add("end_factor", &Linear::end_factor, "factor at the last step").in(at_least(0));
  });
}

const OptionFields& Polynomial::fields() {
  return described_schedule<Polynomial>([](const auto& add) {
    add("power", &Polynomial::power, "exponent of what is left").in(above(0));
    add_floor(add);
  });
}

const OptionFields& Step::fields() {
  return described_schedule<Step>([](const auto& add) {
    add("step_size", &Step::step_size, "steps between decays").in(at_least(1)).expects("at least 1 step").needed();
    add_gamma(add);
  });
}

const OptionFields& MultiStep::fields() {
  return described_schedule<MultiStep>([](const auto& add) {
    add("milestones", &MultiStep::milestones, "steps after begin at which it decays, ascending").in(kLengths).needed();
    add_gamma(add);
    add.rule(check_milestones);
  });
}

const OptionFields& Exponential::fields() {
  return described_schedule<Exponential>([](const auto& add) { add_gamma(add).needed(); });
}

const OptionFields& Cosine::fields() {
  return described_schedule<Cosine>([](const auto& add) {
    add("T_max", &Cosine::T_max, "half a period; 0: the whole interval").in(at_least(0));
    add_floor(add);
  });
}

const OptionFields& CosineRestart::fields() {
  using O = CosineRestart;
  return described_schedule<O>([](const auto& add) {
    add("periods", &O::periods, "lengths of the periods in steps").in(kLengths).needed();
    add("restart_weights", &O::restart_weights, "factor of the value at each period's start; empty: 1").in(above(0));
    add_floor(add);
    add.rule(check_periods);
  });
}

const OptionFields& OneCycle::fields() {
  using O = OneCycle;
  return described_schedule<O>([](const auto& add) {
    add("eta_max", &O::eta_max, "peak; 0: the initial value").in(at_least(0)).also_keyed("max_lr");
    add("total_steps", &O::total_steps, "length of the cycle; 0: the whole interval").in(at_least(0));
    add("pct_start", &O::pct_start, "share of the cycle that rises").in(between(0, 1));
    add("anneal_strategy", &O::anneal_strategy, "shape of rise and fall").one_of({"cos", "linear"});
    add("div_factor", &O::div_factor, "peak / first value").in(above(0));
    add("final_div_factor", &O::final_div_factor, "first value / last value").in(above(0));
    add("three_phase", &O::three_phase, "down as fast as up, then to the end");
    add("cycle_momentum", &O::cycle_momentum, "also drives momentum, which is low where the rate is high");
    add("base_momentum", &O::base_momentum, "lowest momentum").in(up_to_below(0, 1));
    add("max_momentum", &O::max_momentum, "highest momentum").in(up_to_below(0, 1));
  });
}

const OptionFields& WSD::fields() {
  return described_schedule<WSD>([](const auto& add) {
    add("warmup_steps", &WSD::warmup_steps, "steps that it rises").in(at_least(0));
    add("warmup_ratio", &WSD::warmup_ratio, "share of the interval in which it rises").in(between(0, 1));
    add("decay_steps", &WSD::decay_steps, "steps that it falls").in(at_least(0));
    add("decay_ratio", &WSD::decay_ratio, "share of the interval in which it falls").in(between(0, 1));
    add("decay_type", &WSD::decay_type, "shape of the fall").one_of({"linear", "sqrt", "cosine"});
    add.rule(check_lengths);
    add_floor(add);
  });
}

const OptionFields& ReduceOnPlateau::fields() {
  using O = ReduceOnPlateau;
  return described_schedule<O>([](const auto& add) {
    add("monitor", &O::monitor, "the metric that is watched").called("the name of a metric");
    add("rule", &O::rule, "what is better; by default less, needed where the metric's name says greater")
        .called("less, greater")
        .one_of({"", "less", "greater"});
    add("factor", &O::factor, "factor of one reduction").in(inside(0, 1));
    add("patience", &O::patience, "validations without improvement that are let pass").in(at_least(0));
    add("threshold", &O::threshold, "least improvement that counts").in(at_least(0));
    add("threshold_rule", &O::threshold_rule, "relative to the best value, or absolute").one_of({"rel", "abs"});
    add("cooldown", &O::cooldown, "validations after a reduction that do not count").in(at_least(0));
    add("min_value", &O::min_value, "never reduced below").in(at_least(0)).also_keyed("min_lr");
    add("eps", &O::eps, "smaller reductions are left out").in(at_least(0));
    add.rule([](const O& o) { check(!o.monitor.empty(), "monitor", "''", "the name of a metric, such as loss"); });
  });
}

const OptionFields& CustomSchedule::fields() {
  return described_schedule<CustomSchedule>([](const auto& /*add*/) {});
}

namespace {

// In the order of the variant.
const std::vector<std::pair<std::string, Schedule>>& built_in_schedules() {
  static const std::vector<std::pair<std::string, Schedule>> kAll = {{"Constant", Constant{}},
                                                                     {"Linear", Linear{}},
                                                                     {"Polynomial", Polynomial{}},
                                                                     {"Step", Step{}},
                                                                     {"MultiStep", MultiStep{}},
                                                                     {"Exponential", Exponential{}},
                                                                     {"Cosine", Cosine{}},
                                                                     {"CosineRestart", CosineRestart{}},
                                                                     {"OneCycle", OneCycle{}},
                                                                     {"WSD", WSD{}},
                                                                     {"ReduceOnPlateau", ReduceOnPlateau{}}};
  return kAll;
}

}  // namespace

const std::string& type_of(const Schedule& schedule) {
  const auto* custom = std::get_if<CustomSchedule>(&schedule);
  return custom != nullptr ? custom->type : built_in_schedules().at(schedule.index()).first;
}

std::vector<std::string> schedule_types() { return keys_in(built_in_schedules()); }

Schedule make_schedule(const std::string& type) {
  for (const auto& [name, schedule] : built_in_schedules()) {
    if (name == type) return schedule;
  }
  return CustomSchedule{.type = type};
}

void check_schedule(const Schedule& schedule) {
  if (const auto* custom = std::get_if<CustomSchedule>(&schedule)) {
    const std::string found = "'" + custom->type + "'";
    check(custom->formula != nullptr, "type", found, "one of " + c10::Join(", ", schedule_types()));
    // A name that means two things would be read as the other one in a log.
    const bool is_new = std::holds_alternative<CustomSchedule>(make_schedule(custom->type));
    check(!custom->type.empty() && is_new, "type", found, "a name of its own beside a formula of its own");
  }
  std::visit([](const auto& options) { check_options(options); }, schedule);
}

}  // namespace duet
