#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <random>
#include <gtest/gtest.h>
#include "optim/schedules/detail/schedule_rules.h"

// The same schedules written the other way, as mmengine does it: each value from the one before.

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

// Each schedule's next value from the one before, at step s of 0 to `last`. `initial`: the group's.
struct Place {
  double value;
  int64_t s, last;
  double initial;
};

template <class T>
double low_of(const T& o, double initial) {
  return o.eta_min_ratio ? initial * *o.eta_min_ratio : o.eta_min;
}

double next(const Constant& o, const Place& at) {
  return at.s == 0 ? at.value * o.factor : at.s == at.last ? at.value / o.factor : at.value;
}

double next(const Linear& o, const Place& at) {
  if (at.s == 0) return at.value * o.start_factor;
  const double rise = o.end_factor - o.start_factor;
  return at.value * (1 + rise / (real(at.last) * o.start_factor + real(at.s - 1) * rise));
}

double next(const Polynomial& o, const Place& at) {
  if (at.s == 0) return at.value;
  const double low = low_of(o, at.initial);
  return (at.value - low) * std::pow(1 - 1 / real(at.last - at.s + 1), o.power) + low;
}

double next(const Step& o, const Place& at) {
  return at.s != 0 && at.s % o.step_size == 0 ? at.value * o.gamma : at.value;
}

double next(const MultiStep& o, const Place& at) {
  return std::count(o.milestones.begin(), o.milestones.end(), at.s) != 0 ? at.value * o.gamma : at.value;
}

double next(const Exponential& o, const Place& at) { return at.s == 0 ? at.value : at.value * o.gamma; }

double next(const Cosine& o, const Place& at) {
  if (at.s == 0) return at.value;
  const int64_t half_period = o.T_max > 0 ? o.T_max : at.last + 1;
  const double low = low_of(o, at.initial);
  if ((at.s - 1 - half_period) % (2 * half_period) != 0) return cosine_step(at.value, low, at.s, half_period);
  return at.value + (at.initial - low) * (1 - std::cos(std::numbers::pi / real(half_period))) / 2;
}

double next(const CosineRestart& o, const Place& at) {
  int64_t s = at.s;
  for (std::size_t i = 0; i < o.periods.size(); s -= o.periods[i++]) {
    if (s == 0) return at.initial * o.restart_weights[i];
    if (s < o.periods[i]) return cosine_step(at.value, low_of(o, at.initial), s, o.periods[i]);
  }
  return at.value;
}

double next(const WSD& o, const Place& at) {
  const int64_t s = at.s;
  if (s < o.warmup_steps) return s == 0 ? at.value / real(o.warmup_steps) : at.value * real(s + 1) / real(s);
  const int64_t done = s + 1 - (at.last + 1 - o.decay_steps);
  if (done <= 0) return at.value;
  const auto share = [&](int64_t steps) { return decay_share(o.decay_type, real(steps) / real(o.decay_steps)); };
  const double low = low_of(o, at.initial);
  return low + (at.value - low) * share(done) / share(done - 1);
}

template <class T>
double next(const T&, const Place& at) {
  ADD_FAILURE() << "no such schedule here";
  return at.value;
}

void expect_agreement(const std::vector<Schedule>& schedules, double initial) {
  validate_schedules(schedules, {kRunSteps});
  const ScheduleCurve curve(schedules, "lr", {kRunSteps});
  double value = initial;
  for (int64_t step = 0; step < kRunSteps; ++step) {
    for (const Schedule& schedule : schedules) {
      const auto one = [&](const auto& o) {
        const int64_t end = o.end >= 0 ? o.end : kRunSteps;
        return step < o.begin || step >= end ? value : next(o, {value, step - o.begin, end - o.begin - 1, initial});
      };
      value = std::visit(one, schedule);
    }
    ASSERT_NEAR(curve.at(step, initial), value, 1e-12) << type_of(schedules.back()) << " at step " << step;
  }
}

TEST(ScheduleRecursive, EveryKindAgreesWithItsClosedForm) {
  const Schedule half_warm_up = Linear{.start_factor = 0.01, .end_factor = 0.5, .end = 100};
  for (const Schedule& schedule : std::vector<Schedule>{
           Constant{.factor = 1.0 / 3, .begin = 100, .end = 900},
           Linear{.start_factor = 0.001, .begin = 100},
           Polynomial{.power = 0.9, .eta_min = 1e-3, .begin = 100},
           Step{.step_size = 130, .gamma = 0.7, .begin = 100},
           MultiStep{.milestones = {1, 77, 1500}, .begin = 100},
           Exponential{.gamma = 0.999, .begin = 100},
           Cosine{.eta_min_ratio = 0.1, .begin = 100},
           Cosine{.T_max = 170, .eta_min = 0.01, .begin = 100},
           CosineRestart{.periods = {400, 1, 700}, .restart_weights = {1, 0.7, 0.3}, .begin = 100},
           WSD{.warmup_steps = 50, .decay_steps = 300, .eta_min = 1e-3, .begin = 100},
           WSD{.decay_steps = 900, .decay_type = "sqrt", .begin = 100},
           WSD{.warmup_steps = 1000, .decay_steps = 900, .decay_type = "cosine", .begin = 100},
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
    std::vector<Schedule> schedules;
    for (int i = 0; i < 5; ++i) {
      const std::array<Schedule, 4> kinds = {
          Constant{.factor = share(0.2, 2)}, Linear{.start_factor = share(0.1, 1), .end_factor = share(0.2, 2)},
          Step{.step_size = pick(1, 300), .gamma = share(0.98, 1)}, Exponential{.gamma = share(0.98, 1)}};
      Schedule schedule = kinds[pick(0, 3)];
      std::visit(
          [&](auto& o) {
            o.begin = pick(0, 1000);
            o.end = o.begin + pick(2, 900);
          },
          schedule);
      schedules.push_back(schedule);
    }
    expect_agreement(schedules, share(0.01, 0.1));
  }
}

template <class T>
Schedule in_epochs(T schedule, bool converted) {
  schedule.by_epoch = true;
  schedule.convert_to_iter_based = converted;
  return schedule;
}

// One that counts epochs has at each of their steps the value that it would have if they were steps.
TEST(ScheduleRecursive, EpochsCountAsTheirStepsDo) {
  constexpr int64_t kEpochs = 40, kSteps = 50;  // of each
  const auto check = [](const auto& schedule) {
    const ScheduleCurve epochs({in_epochs(schedule, false)}, "lr", {kEpochs * kSteps, kSteps});
    const ScheduleCurve plain({schedule}, "lr", {kEpochs});
    for (int64_t step = 0; step < kEpochs * kSteps; ++step) {
      ASSERT_EQ(epochs.at(step, 0.1), plain.at(step / kSteps, 0.1)) << type_of(Schedule(schedule)) << " " << step;
    }
  };
  check(Linear{.start_factor = 0.1, .end = 5});
  check(Cosine{.eta_min = 1e-3, .begin = 5, .end = 38});
  check(MultiStep{.milestones = {12, 30}});
  check(Exponential{.gamma = 0.97});
  check(CosineRestart{.periods = {10, 20}, .restart_weights = {1, 0.5}, .begin = 2});
  check(OneCycle{.eta_max = 0.4});
}

// Converted, whatever is counted in epochs is so many times the steps of one.
TEST(ScheduleRecursive, ConvertedOnesAreThoseOfAsManySteps) {
  constexpr int64_t kSteps = 50;  // of an epoch
  const auto check = [](const auto& schedule, const Schedule& expected) {
    const ScheduleRun run = {40 * kSteps, kSteps};
    const ScheduleCurve converted({in_epochs(schedule, true)}, "lr", run), plain({expected}, "lr", run);
    for (int64_t step = 0; step < run.steps; ++step) {
      ASSERT_EQ(converted.at(step, 0.1), plain.at(step, 0.1)) << type_of(expected) << " at step " << step;
    }
  };
  check(Linear{.start_factor = 0.1, .end = 3}, Linear{.start_factor = 0.1, .end = 150});
  check(Cosine{.T_max = 30, .begin = 3, .end = 40}, Cosine{.T_max = 1500, .begin = 150, .end = 2000});
  check(Step{.step_size = 7, .gamma = 0.6}, Step{.step_size = 350, .gamma = 0.6});
  check(MultiStep{.milestones = {3, 20}, .begin = 2}, MultiStep{.milestones = {150, 1000}, .begin = 100});
  check(Constant{.factor = 0.5, .begin = 1, .end = 9}, Constant{.factor = 0.5, .begin = 50, .end = 450});
  check(Polynomial{.power = 2, .begin = 2, .end = 40}, Polynomial{.power = 2, .begin = 100, .end = 2000});
  check(CosineRestart{.periods = {10, 30}, .restart_weights = {1, 0.3}, .eta_min = 0.01},
        CosineRestart{.periods = {500, 1500}, .restart_weights = {1, 0.3}, .eta_min = 0.01});
  check(OneCycle{.eta_max = 0.4, .total_steps = 40, .three_phase = true},
        OneCycle{.eta_max = 0.4, .total_steps = 2000, .three_phase = true});
}

}  // namespace
}  // namespace duet
