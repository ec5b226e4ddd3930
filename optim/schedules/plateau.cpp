#include "optim/schedules/plateau.h"
#include <algorithm>
#include <limits>
#include <utility>

namespace duet {

PlateauWatch::PlateauWatch(PlateauOptions options) : options_(std::move(options)) {
  const double worst = std::numeric_limits<double>::infinity();
  best_ = options_.rule == "less" ? worst : -worst;
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
  const bool less = options_.rule == "less";
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
