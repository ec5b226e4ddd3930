#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <random>
#include <gtest/gtest.h>
#include "optim/schedules/schedule_curve.h"

// The same schedules written the other way: each value from the one before.

namespace duet {
namespace {

constexpr int64_t kRunSteps = 2000;

double real(int64_t count) { return static_cast<double>(count); }

double cosine_step(double value, double low, int64_t s, int64_t half_period) {
  const auto height = [&](int64_t at) { return 1 + std::cos(std::numbers::pi * real(at) / real(half_period)); };
  return height(s) / height(s - 1) * (value - low) + low;
}

double decay_share(const std::string& type, double progress) {
  if (type == "linear") return 1 - progress;
  return type == "sqrt" ? 1 - std::sqrt(progress) : (1 + std::cos(std::numbers::pi * progress)) / 2;
}

// One schedule and its current value.
class Recursive {
 public:
  Recursive(ScheduleOptions options, int64_t end, double initial)
      : o_(std::move(options)),
        end_(end),
        initial_(initial),
        low_(o_.eta_min_ratio ? initial * *o_.eta_min_ratio : o_.eta_min) {}

  double next(double value, int64_t step) const {
    if (step < o_.begin || step >= end_) return value;
    const int64_t s = step - o_.begin, last = end_ - o_.begin - 1;
    if (o_.type == "Constant") return s == 0 ? value * o_.factor : s == last ? value / o_.factor : value;
    if (o_.type == "Linear") return linear(value, s, last);
    if (o_.type == "CosineRestart") return restart(value, s);
    if (o_.type == "WSD") return wsd(value, s, last + 1);
    if (s == 0) return value;
    if (o_.type == "Step") return s % o_.step_size == 0 ? value * o_.gamma : value;
    if (o_.type == "MultiStep") {
      return std::count(o_.milestones.begin(), o_.milestones.end(), s) != 0 ? value * o_.gamma : value;
    }
    if (o_.type == "Exponential") return value * o_.gamma;
    if (o_.type == "Polynomial") return (value - low_) * std::pow(1 - 1 / real(last - s + 1), o_.power) + low_;
    return cosine(value, s, o_.T_max > 0 ? o_.T_max : last + 1);
  }

 private:
  double linear(double value, int64_t s, int64_t last) const {
    if (s == 0) return value * o_.start_factor;
    const double rise = o_.end_factor - o_.start_factor;
    return value * (1 + rise / (real(last) * o_.start_factor + real(s - 1) * rise));
  }

  double cosine(double value, int64_t s, int64_t half_period) const {
    if ((s - 1 - half_period) % (2 * half_period) != 0) return cosine_step(value, low_, s, half_period);
    return value + (initial_ - low_) * (1 - std::cos(std::numbers::pi / real(half_period))) / 2;
  }

  double restart(double value, int64_t s) const {
    for (std::size_t i = 0; i < o_.periods.size(); s -= o_.periods[i++]) {
      if (s == 0) return initial_ * o_.restart_weights[i];
      if (s < o_.periods[i]) return cosine_step(value, low_, s, o_.periods[i]);
    }
    return value;
  }

  double wsd(double value, int64_t s, int64_t length) const {
    const int64_t warmup = o_.wsd.warmup_steps, decay = o_.wsd.decay_steps;
    if (s < warmup) return s == 0 ? value / real(warmup) : value * real(s + 1) / real(s);
    const int64_t done = s + 1 - (length - decay);
    if (done <= 0) return value;
    const auto share = [&](int64_t steps) { return decay_share(o_.wsd.decay_type, real(steps) / real(decay)); };
    return low_ + (value - low_) * share(done) / share(done - 1);
  }

  ScheduleOptions o_;
  int64_t end_;
  double initial_, low_;
};

void expect_agreement(const std::vector<ScheduleOptions>& schedules, double initial) {
  validate_schedules(schedules, {kRunSteps});
  const ScheduleCurve curve(schedules, "lr", {kRunSteps});
  std::vector<Recursive> recursive;
  for (const ScheduleOptions& schedule : schedules) {
    recursive.emplace_back(schedule, schedule.end >= 0 ? schedule.end : kRunSteps, initial);
  }
  double value = initial;
  for (int64_t step = 0; step < kRunSteps; ++step) {
    for (const Recursive& schedule : recursive) value = schedule.next(value, step);
    ASSERT_NEAR(curve.at(step, initial), value, 1e-12) << schedules.back().type << " at step " << step;
  }
}

TEST(ScheduleRecursive, EveryKindAgreesWithItsClosedForm) {
  const ScheduleOptions half_warm_up = {.type = "Linear", .end = 100, .start_factor = 0.01, .end_factor = 0.5};
  for (const ScheduleOptions& schedule : std::vector<ScheduleOptions>{
           {.type = "Constant", .begin = 100, .end = 900, .factor = 1.0 / 3},
           {.type = "Linear", .begin = 100, .start_factor = 0.001},
           {.type = "Polynomial", .begin = 100, .power = 0.9, .eta_min = 1e-3},
           {.type = "Step", .begin = 100, .step_size = 130, .gamma = 0.7},
           {.type = "MultiStep", .begin = 100, .milestones = {1, 77, 1500}},
           {.type = "Exponential", .begin = 100, .gamma = 0.999},
           {.type = "Cosine", .begin = 100, .eta_min_ratio = 0.1},
           {.type = "Cosine", .begin = 100, .T_max = 170, .eta_min = 0.01},
           {.type = "CosineRestart", .begin = 100, .periods = {400, 1, 700}, .restart_weights = {1, 0.7, 0.3}},
           {.type = "WSD", .begin = 100, .eta_min = 1e-3, .wsd = {.warmup_steps = 50, .decay_steps = 300}},
           {.type = "WSD", .begin = 100, .wsd = {.decay_steps = 900, .decay_type = "sqrt"}},
           {.type = "WSD", .begin = 100, .wsd = {.warmup_steps = 1000, .decay_steps = 900, .decay_type = "cosine"}},
       }) {
    expect_agreement({half_warm_up, schedule}, 0.1);
  }
}

TEST(ScheduleRecursive, ProductsOfManyAgreeWithTheirClosedForm) {
  std::mt19937 random(0);
  const auto pick = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  const auto share = [&](double low, double high) { return std::uniform_real_distribution<double>(low, high)(random); };
  for (int list = 0; list < 50; ++list) {
    std::vector<ScheduleOptions> schedules;
    for (int i = 0; i < 5; ++i) {
      ScheduleOptions schedule = {.begin = pick(0, 1000),
                                  .factor = share(0.2, 2),
                                  .start_factor = share(0.1, 1),
                                  .end_factor = share(0.2, 2),
                                  .step_size = pick(1, 300),
                                  .gamma = share(0.98, 1)};
      schedule.type = std::array{"Constant", "Linear", "Step", "Exponential"}[pick(0, 3)];
      schedule.end = schedule.begin + pick(2, 900);
      schedules.push_back(schedule);
    }
    expect_agreement(schedules, share(0.01, 0.1));
  }
}

}  // namespace
}  // namespace duet
