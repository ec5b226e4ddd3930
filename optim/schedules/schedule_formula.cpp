#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <utility>
#include "optim/schedules/detail/schedule_rules.h"

// value(options, at): the formulas that schedule.h gives.

namespace duet {

namespace {

double ratio(int64_t part, int64_t whole) { return static_cast<double>(part) / static_cast<double>(whole); }

// 1 at the beginning of half a period, 0 at its end.
double half_cosine(double share) { return (1 + std::cos(std::numbers::pi * share)) / 2; }

template <class T>
double lowest(const T& o, const ScheduleStep& at) {
  return o.eta_min_ratio ? at.initial * *o.eta_min_ratio : o.eta_min;
}

double decayed(double value, double gamma, int64_t times) {
  return value * std::pow(gamma, static_cast<double>(times));
}

double value(const Constant& o, const ScheduleStep& at) {
  return at.s < at.length - 1 ? at.taken_over * o.factor : at.taken_over;
}

double value(const Linear& o, const ScheduleStep& at) {
  const double share = at.length > 1 ? ratio(at.s, at.length - 1) : 1.0;
  // Both ends exact, which start + (end - start) * share is not.
  return at.taken_over * (o.start_factor * (1 - share) + o.end_factor * share);
}

double value(const Polynomial& o, const ScheduleStep& at) {
  const double share = at.length > 1 ? 1 - ratio(at.s, at.length - 1) : 1.0;
  const double low = lowest(o, at);
  return low + (at.taken_over - low) * std::pow(share, o.power);
}

double value(const Step& o, const ScheduleStep& at) { return decayed(at.taken_over, o.gamma, at.s / o.step_size); }

double value(const MultiStep& o, const ScheduleStep& at) {
  const auto& marks = o.milestones;
  return decayed(at.taken_over, o.gamma, std::upper_bound(marks.begin(), marks.end(), at.s) - marks.begin());
}

double value(const Exponential& o, const ScheduleStep& at) { return decayed(at.taken_over, o.gamma, at.s); }

double value(const Cosine& o, const ScheduleStep& at) {
  const int64_t half_period = o.T_max > 0 ? o.T_max : at.length;
  // mmengine swings back to the initial value, whatever it came from.
  const double high = at.s <= half_period ? at.taken_over : at.initial;
  const double low = lowest(o, at);
  return low + (high - low) * half_cosine(ratio(at.s, half_period));
}

double value(const CosineRestart& o, const ScheduleStep& at) {
  std::size_t period = 0;
  int64_t s = at.s;
  while (period + 1 < o.periods.size() && s >= o.periods[period]) s -= o.periods[period++];
  s = std::min(s, o.periods[period] - 1);
  const double high = at.initial * (o.restart_weights.empty() ? 1.0 : o.restart_weights[period]);
  const double low = lowest(o, at);
  return low + (high - low) * half_cosine(ratio(s, o.periods[period]));
}

double between(const std::string& strategy, double from, double to, double share) {
  return strategy == "cos" ? to + (from - to) * half_cosine(share) : from + (to - from) * share;
}

// The levels at which a cycle begins, turns and ends.
std::vector<double> cycle_levels(const OneCycle& cycle, double initial) {
  const double peak = cycle.eta_max > 0 ? cycle.eta_max : initial;
  double begin = peak / cycle.div_factor, turn = peak, end = begin / cycle.final_div_factor;
  if (cycle.param_name == "momentum") {
    begin = end = cycle.max_momentum;
    turn = cycle.base_momentum;
  }
  return cycle.three_phase ? std::vector<double>{begin, turn, begin, end} : std::vector<double>{begin, turn, end};
}

double value(const OneCycle& cycle, const ScheduleStep& at) {
  const int64_t total = cycle.total_steps > 0 ? cycle.total_steps : at.length;
  const double s = static_cast<double>(std::min(at.s, total - 1));
  // torch's borders: a phase ends one step before its share of the cycle, the second one two steps before.
  const double rise = cycle.pct_start * static_cast<double>(total);
  std::vector<double> ends = {rise - 1};
  if (cycle.three_phase) ends.push_back(2 * rise - 2);
  ends.push_back(static_cast<double>(total - 1));

  std::size_t phase = 0;
  while (phase + 1 < ends.size() && s > ends[phase]) ++phase;
  const double from = phase > 0 ? ends[phase - 1] : 0.0;
  const double share = ends[phase] > from ? (s - from) / (ends[phase] - from) : 1.0;
  const std::vector<double> levels = cycle_levels(cycle, at.initial);
  return between(cycle.anneal_strategy, levels[phase], levels[phase + 1], share);
}

double value(const WSD& o, const ScheduleStep& at) {
  const WsdLengths lengths = wsd_lengths(o, at.length);
  // Counted from 1, so that the first step trains and the last one reaches the lowest value.
  if (at.s < lengths.warmup) return at.taken_over * ratio(at.s + 1, lengths.warmup);
  const int64_t decaying = at.s + 1 - (at.length - lengths.decay);
  if (decaying <= 0) return at.taken_over;
  const double progress = ratio(decaying, lengths.decay);
  const double share = o.decay_type == "linear" ? 1 - progress
                       : o.decay_type == "sqrt" ? 1 - std::sqrt(progress)
                                                : half_cosine(progress);
  const double low = lowest(o, at);
  return low + (at.taken_over - low) * share;
}

double value(const ReduceOnPlateau& /*options*/, const ScheduleStep& at) { return at.taken_over; }

double value(const CustomSchedule& own, const ScheduleStep& at) { return own.formula(at); }

}  // namespace

double schedule_value(const Schedule& schedule, const ScheduleStep& at) {
  return std::visit([&](const auto& options) { return value(options, at); }, schedule);
}

WsdLengths wsd_lengths(const WSD& options, int64_t length) {
  const auto steps = [&](int64_t steps, double share) {
    return steps > 0 ? steps : static_cast<int64_t>(std::llround(static_cast<double>(length) * share));
  };
  return {steps(options.warmup_steps, options.warmup_ratio), steps(options.decay_steps, options.decay_ratio)};
}

PlateauWatch::PlateauWatch(ReduceOnPlateau options) : options_(std::move(options)) {
  const double worst = std::numeric_limits<double>::infinity();
  best_ = options_.rule == "greater" ? -worst : worst;
}

bool PlateauWatch::observe(double metric) {
  if (improves(metric)) {
    best_ = metric;
    bad_ = 0;
  } else {
    ++bad_;
  }
  if (cooldown_ > 0) {
    --cooldown_;
    bad_ = 0;
  }
  if (bad_ <= options_.patience) return false;
  cooldown_ = options_.cooldown;
  bad_ = 0;
  return true;
}

double PlateauWatch::reduced(double value) const {
  const double lower = std::max(value * options_.factor, options_.min_value);
  return value - lower > options_.eps ? lower : value;
}

bool PlateauWatch::improves(double metric) const {
  const bool less = options_.rule != "greater";
  const double sign = less ? -1 : 1;
  const double bar =
      options_.threshold_rule == "rel" ? best_ * (1 + sign * options_.threshold) : best_ + sign * options_.threshold;
  return less ? metric < bar : metric > bar;
}

StateDict PlateauWatch::state_dict() const {
  StateDict state;
  state.set("best", StateValue(best_));
  state.set("bad", StateValue(bad_));
  state.set("cooldown", StateValue(cooldown_));
  return state;
}

void PlateauWatch::load_state_dict(const StateDict& state) {
  const double best = state.number("best");
  const int64_t bad = state.integer("bad"), cooldown = state.integer("cooldown");
  best_ = best;
  bad_ = bad;
  cooldown_ = cooldown;
}

}  // namespace duet
