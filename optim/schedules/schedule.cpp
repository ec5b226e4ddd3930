#include "optim/schedules/schedule.h"
#include <algorithm>
#include <functional>
#include <map>
#include <c10/util/StringUtil.h>
#include "base/error.h"
#include "optim/schedules/detail/schedule_formula.h"

namespace duet {

namespace {

template <class Value>
void check(bool valid, const char* field, const Value& found, const char* expected) {
  if (valid) return;
  throw ConfigError(
      c10::str("[Schedule] found ", field, " ", found, ", expected ", expected, "; correct it in param_scheduler"));
}

using O = ScheduleOptions;
// No run has more steps; products of two of these stay within int64.
const Range kLengths{.high = 2147483648.0};
using Add = FieldAdder<O>;

void check_interval(const O& o) {
  check(!o.param_name.empty(), "param_name", "''", "a number of the optimizer, such as lr");
  check(o.end == -1 || o.end > o.begin, "end", o.end,
        o.by_epoch ? "an epoch after begin, or -1 for the end of the run"
                   : "a step after begin, or -1 for the end of the run");
}

void add_interval(const Add& add) {
  add("param_name", &O::param_name, "the number that it drives").read_by_hand("text", "lr");
  add("begin", &O::begin, "first step that it governs").in(at_least(0));
  add("end", &O::end, "one past its last step; -1: the end of the run").in(at_least(-1));
  add("by_epoch", &O::by_epoch, "counts epochs, not steps");
  add("convert_to_iter_based", &O::convert_to_iter_based, "epochs become steps, so that the value changes within them");
  add.rule(check_interval);
}

void add_floor(const Add& add) {
  add("eta_min_ratio", &O::eta_min_ratio, "lowest value as a share of the initial one").in(between(0, 1));
  add("eta_min", &O::eta_min, "lowest value").in(at_least(0));
  add.rule([](const O& o) {
    check(!o.eta_min_ratio || o.eta_min == 0, "eta_min", o.eta_min, "one of eta_min and eta_min_ratio, not both");
  });
}

OptionField& add_gamma(const Add& add) { return add("gamma", &O::gamma, "factor of one decay").in(above(0)); }

void add_constant(const Add& add) { add("factor", &O::factor, "of the value").in(at_least(0)); }

void add_linear(const Add& add) {
  add("start_factor", &O::start_factor, "factor at begin").in(at_least(0));
  add("end_factor", &O::end_factor, "factor at the last step").in(at_least(0));
}

void add_step(const Add& add) {
  add("step_size", &O::step_size, "steps between decays").in(at_least(1)).expects("at least 1 step").needed();
  add_gamma(add);
}

void add_multi_step(const Add& add) {
  add("milestones", &O::milestones, "steps after begin at which it decays, ascending").in(kLengths).needed();
  add_gamma(add);
  add.rule([](const O& o) {
    const auto& marks = o.milestones;
    const bool ascending = std::adjacent_find(marks.begin(), marks.end(), std::greater_equal<>()) == marks.end();
    check(!marks.empty() && marks.front() >= 1 && ascending, "milestones", "(" + c10::Join(", ", marks) + ")",
          "one or more steps >= 1 in ascending order");
  });
}

void add_cosine(const Add& add) {
  add("T_max", &O::T_max, "half a period; 0: the whole interval").in(at_least(0));
  add_floor(add);
}

void add_polynomial(const Add& add) {
  add("power", &O::power, "exponent of what is left").in(above(0));
  add_floor(add);
}

void add_cosine_restart(const Add& add) {
  add("periods", &O::periods, "lengths of the periods in steps").in(kLengths).needed();
  add("restart_weights", &O::restart_weights, "of the value at each period's start; empty: 1").in(above(0));
  add_floor(add);
  add.rule([](const O& o) {
    const bool long_enough = std::all_of(o.periods.begin(), o.periods.end(), [](int64_t n) { return n >= 1; });
    check(!o.periods.empty() && long_enough, "periods", "(" + c10::Join(", ", o.periods) + ")",
          "one or more lengths of at least 1 step");
    check(o.restart_weights.empty() || o.restart_weights.size() == o.periods.size(), "restart_weights",
          "(" + c10::Join(", ", o.restart_weights) + ")", "one weight for each of periods");
  });
}

// A member of a part of the options.
template <class Part, class T>
auto within(Part O::* part, T Part::* member) {
  return [part, member](O& o) -> T& { return (o.*part).*member; };
}

void add_one_cycle(const Add& add) {
  const auto of = [](auto member) { return within(&O::one_cycle, member); };
  using C = OneCycleOptions;
  add("eta_max", of(&C::eta_max), "peak; 0: the initial value").in(at_least(0)).also_keyed("max_lr");
  add("total_steps", of(&C::total_steps), "length of the cycle; 0: the whole interval").in(at_least(0));
  add("pct_start", of(&C::pct_start), "share of the cycle that rises").in(between(0, 1));
  add("anneal_strategy", of(&C::anneal_strategy), "shape of rise and fall").one_of({"cos", "linear"});
  add("div_factor", of(&C::div_factor), "peak / first value").in(above(0));
  add("final_div_factor", of(&C::final_div_factor), "first value / last value").in(above(0));
  add("three_phase", of(&C::three_phase), "down as fast as up, then to the end");
  add("cycle_momentum", of(&C::cycle_momentum), "also drives momentum, which is low where the rate is high");
  add("base_momentum", of(&C::base_momentum), "lowest momentum").in(up_to_below(0, 1));
  add("max_momentum", of(&C::max_momentum), "highest momentum").in(up_to_below(0, 1));
}

void check_wsd(const O& o) {
  const WsdOptions& wsd = o.wsd;
  check(wsd.warmup_steps == 0 || wsd.warmup_ratio == 0, "warmup_ratio", wsd.warmup_ratio,
        "one of warmup_steps and warmup_ratio, not both");
  check((wsd.decay_steps == 0) != (wsd.decay_ratio == 0), "decay_steps", wsd.decay_steps,
        "either decay_steps or decay_ratio to be set");
  check(wsd.warmup_ratio + wsd.decay_ratio <= 1, "warmup_ratio + decay_ratio", wsd.warmup_ratio + wsd.decay_ratio,
        "at most 1");
}

void add_wsd(const Add& add) {
  const auto of = [](auto member) { return within(&O::wsd, member); };
  using W = WsdOptions;
  add("warmup_steps", of(&W::warmup_steps), "steps that it rises").in(at_least(0));
  add("warmup_ratio", of(&W::warmup_ratio), "likewise as a share of the interval").in(between(0, 1));
  add("decay_steps", of(&W::decay_steps), "steps that it falls").in(at_least(0));
  add("decay_ratio", of(&W::decay_ratio), "likewise as a share of the interval").in(between(0, 1));
  add("decay_type", of(&W::decay_type), "shape of the fall").one_of({"linear", "sqrt", "cosine"});
  add.rule(check_wsd);
  add_floor(add);
}

void add_plateau(const Add& add) {
  const auto of = [](auto member) { return within(&O::plateau, member); };
  using P = PlateauOptions;
  add("monitor", of(&P::monitor), "the metric that is watched").called("the name of a metric");
  add("rule", of(&P::rule), "what is better").one_of({"less", "greater"});
  add("factor", of(&P::factor), "of one reduction").in(inside(0, 1));
  add("patience", of(&P::patience), "validations without improvement that are let pass").in(at_least(0));
  add("threshold", of(&P::threshold), "least improvement that counts").in(at_least(0));
  add("threshold_rule", of(&P::threshold_rule), "relative to the best value, or absolute").one_of({"rel", "abs"});
  add("cooldown", of(&P::cooldown), "validations after a reduction that do not count").in(at_least(0));
  add("min_value", of(&P::min_value), "never reduced below").in(at_least(0)).also_keyed("min_lr");
  add("eps", of(&P::eps), "smaller reductions are left out").in(at_least(0));
  add.rule(
      [](const O& o) { check(!o.plateau.monitor.empty(), "monitor", "''", "the name of a metric, such as loss"); });
}

const std::map<std::string, OptionFields>& all_fields() {
  const auto fields = [](auto shape) {
    return OptionFields::of<O>("Schedule", [shape](const Add& add) {
      add_interval(add);
      shape(add);
    });
  };
  static const std::map<std::string, OptionFields> kFields = {
      {"", fields([](const Add&) {})},
      {"Constant", fields(add_constant)},
      {"Linear", fields(add_linear)},
      {"Polynomial", fields(add_polynomial)},
      {"Step", fields(add_step)},
      {"MultiStep", fields(add_multi_step)},
      {"Exponential", fields([](const Add& add) { add_gamma(add).needed(); })},
      {"Cosine", fields(add_cosine)},
      {"CosineRestart", fields(add_cosine_restart)},
      {"OneCycle", fields(add_one_cycle)},
      {"WSD", fields(add_wsd)},
      {"ReduceOnPlateau", fields(add_plateau)}};
  return kFields;
}

// A name that means two things would be read as the other one in a log.
void check_own(const ScheduleOptions& o) {
  const std::vector<std::string> types = schedule_types();
  check(!o.type.empty() && std::find(types.begin(), types.end(), o.type) == types.end(), "type", "'" + o.type + "'",
        "a name of its own beside a formula of its own");
}

}  // namespace

const OptionFields& ScheduleOptions::fields(const std::string& type) {
  const auto found = all_fields().find(type);
  return found != all_fields().end() ? found->second : all_fields().at("");
}

void ScheduleOptions::validate() const {
  schedule_formula(*this);  // refuses an unknown type
  if (formula) check_own(*this);
  fields(type).check(this);
}

}  // namespace duet
