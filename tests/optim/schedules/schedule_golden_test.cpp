#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <string>
#include <vector>
#include <gtest/gtest.h>
#include "optim/schedules/detail/schedule_rules.h"

namespace duet {
namespace {

constexpr int64_t kSteps = 2000;
constexpr int64_t kEpoch = 50;
constexpr int64_t kBlock = 20;

struct Golden {
  const char* name;
  std::vector<double> values;
};

#include "tests/optim/schedules/schedule_golden.inc"

struct Case {
  std::vector<Schedule> schedules;
  double initial = 0.1;
  std::string param = "lr";
};

const OneCycle kThreePhases = {.eta_max = 0.4,
                               .total_steps = 1500,
                               .pct_start = 0.25,
                               .anneal_strategy = "linear",
                               .three_phase = true,
                               .cycle_momentum = true};
const Schedule kHalfWarmUp = Linear{.start_factor = 0.01, .end_factor = 0.5, .end = 100};

// As in make_schedule_golden.py.
const std::map<std::string, Case> kTorchCases = {
    {"linear", {{Linear{.end = 500}}}},
    {"constant", {{Constant{.factor = 1.0 / 3, .begin = 50, .end = 700}}}},
    {"step", {{Step{.step_size = 300}}, 0.3}},
    {"multi_step", {{MultiStep{.milestones = {300, 900, 1750}, .gamma = 0.5, .begin = 100, .end = 1800}}, 0.3}},
    {"exponential", {{Exponential{.gamma = 0.998}}}},
    {"exponential_per_epoch", {{Exponential{.gamma = 0.9, .by_epoch = true, .convert_to_iter_based = true}}}},
    {"cosine", {{Cosine{.eta_min = 0.001}}}},
    {"cosine_swings", {{Cosine{.T_max = 300, .eta_min = 0.01}}}},
    {"polynomial", {{Polynomial{.power = 0.9}}}},
    {"warm_restarts", {{CosineRestart{.periods = {500, 500, 500, 500}, .eta_min = 0.002}}}},
    {"warm_restarts_doubled", {{CosineRestart{.periods = {250, 500, 1000, 2000}}}}},
    {"one_cycle", {{OneCycle{.eta_max = 0.4}}}},
    {"one_cycle_momentum", {{OneCycle{.cycle_momentum = true}}, 0.9, "momentum"}},
    {"one_cycle_beta1",
     {{OneCycle{.total_steps = 1000, .cycle_momentum = true, .base_momentum = 0.8}}, 0.9, "momentum"}},
    {"three_phases", {{kThreePhases}}},
    {"three_phases_momentum", {{kThreePhases}, 0.9, "momentum"}},
    {"wsd_linear", {{WSD{.warmup_steps = 100, .decay_ratio = 0.1}}}},
    {"wsd_sqrt", {{WSD{.decay_steps = 1000, .decay_type = "sqrt", .eta_min_ratio = 0.1, .end = 1500}}}},
    {"wsd_cosine", {{WSD{.warmup_ratio = 0.1, .decay_ratio = 0.9, .decay_type = "cosine", .eta_min = 0.001}}}},
    {"sequential", {{Linear{.start_factor = 0.01, .end = 100}, Cosine{.begin = 100}}}},
    {"half_linear_cosine", {{kHalfWarmUp, Cosine{.eta_min = 1e-5, .begin = 100, .end = 1500}}, 0.001}},
    {"linear_multi_step", {{Linear{.end = 500}, MultiStep{.milestones = {1200, 1700}}}, 0.02}},
    {"cosine_step", {{Cosine{.eta_min = 0.01, .end = 900}, Step{.step_size = 400, .begin = 1000}}}},
};

template <class T>
Schedule converted(T schedule) {
  schedule.by_epoch = schedule.convert_to_iter_based = true;
  return schedule;
}

const std::map<std::string, Case> kMmengineCases = {
    {"mm_polynomial", {{Polynomial{.power = 0.9, .eta_min = 1e-4, .begin = 40, .end = 1900}}}},
    {"mm_cosine_t_max", {{kHalfWarmUp, Cosine{.T_max = 300, .eta_min = 0.01, .begin = 100, .end = 1800}}}},
    {"mm_cosine_ratio", {{kHalfWarmUp, Cosine{.eta_min_ratio = 0.05, .begin = 100}}}},
    {"mm_restarts",
     {{kHalfWarmUp,
       CosineRestart{
           .periods = {300, 700, 400}, .restart_weights = {1, 0.5, 0.25}, .eta_min_ratio = 0.1, .begin = 100}}}},
    {"mm_products",
     {{Linear{.start_factor = 0.2, .end = 600}, Exponential{.gamma = 0.999, .begin = 200, .end = 1000},
       Step{.step_size = 250, .gamma = 0.5, .begin = 50, .end = 1200},
       Constant{.factor = 0.3, .begin = 500, .end = 900}}}},
    {"mm_epochs",
     {{Linear{.start_factor = 0.1, .end = 5, .by_epoch = true},
       Cosine{.eta_min = 1e-3, .begin = 5, .end = 38, .by_epoch = true}}}},
    {"mm_epochs_and_steps",
     {{Linear{.end = 130}, MultiStep{.milestones = {12, 30}, .by_epoch = true},
       Exponential{.gamma = 0.97, .by_epoch = true}}}},
    {"mm_epochs_restarts",
     {{CosineRestart{.periods = {10, 20}, .restart_weights = {1, 0.5}, .begin = 2, .by_epoch = true}}}},
    {"mm_epochs_one_cycle", {{OneCycle{.eta_max = 0.4, .by_epoch = true}}}},
    {"mm_converted",
     {{converted(Linear{.start_factor = 0.1, .end = 3}), converted(Cosine{.T_max = 30, .begin = 3, .end = 40})}}},
    {"mm_converted_steps",
     {{converted(Step{.step_size = 7, .gamma = 0.6}), converted(MultiStep{.milestones = {3, 20}, .begin = 2}),
       converted(Constant{.factor = 0.5, .begin = 1, .end = 9})}}},
    {"mm_converted_polynomial", {{converted(Polynomial{.power = 2, .begin = 2, .end = 40})}}},
    {"mm_converted_restarts",
     {{converted(CosineRestart{.periods = {10, 30}, .restart_weights = {1, 0.3}, .eta_min = 0.01})}}},
    {"mm_converted_one_cycle", {{converted(OneCycle{.eta_max = 0.4, .total_steps = 40, .three_phase = true})}}},
    {"mm_momentum",
     {{Linear{.start_factor = 0.5, .end = 200, .param_name = "momentum"},
       Cosine{.eta_min = 0.6, .begin = 200, .end = 1700, .param_name = "momentum"}},
      0.9,
      "momentum"}},
    {"mm_momentum_products",
     {{Constant{.factor = 0.9, .end = 400, .param_name = "momentum"},
       Step{.step_size = 300, .gamma = 0.95, .begin = 100, .param_name = "momentum"},
       Exponential{.gamma = 0.9995, .begin = 600, .param_name = "momentum"}},
      0.9,
      "momentum"}},
    {"mm_beta1",
     {{MultiStep{.milestones = {500, 900}, .gamma = 0.8, .end = 1000, .param_name = "momentum"},
       Polynomial{.eta_min = 0.2, .begin = 1000, .param_name = "momentum"}},
      0.9,
      "momentum"}},
    {"mm_beta1_restarts",
     {{CosineRestart{.periods = {800, 1200}, .restart_weights = {1, 0.9}, .eta_min = 0.5, .param_name = "momentum"}},
      0.9,
      "momentum"}},
};

const std::map<std::string, ReduceOnPlateau> kPlateauCases = {
    {"less_rel", {.factor = 0.5, .patience = 3}},
    {"greater_abs", {.rule = "greater", .patience = 1, .threshold = 0.05, .threshold_rule = "abs", .cooldown = 3}},
    {"min_value", {.factor = 0.3, .patience = 0, .min_value = 0.001}},
    {"eps", {.factor = 0.9, .patience = 2, .eps = 0.005}},
};

void expect_equal(const Golden& golden, const Case& test) {
  const ScheduleRun run = {kSteps, kEpoch};
  validate_schedules(test.schedules, run);
  const ScheduleCurve curve(test.schedules, test.param, run);
  for (std::size_t block = 0; block < golden.values.size(); ++block) {
    const int64_t first = static_cast<int64_t>(block) * kBlock;
    double sum = 0;
    for (int64_t step = first; step < first + kBlock; ++step) sum += curve.at(step, test.initial);
    EXPECT_NEAR(sum, golden.values[block], 1e-12 * kBlock) << golden.name << " from step " << first;
  }
}

TEST(ScheduleGolden, EqualsPyTorchAndMmengineOver2000Steps) {
  std::size_t seen = 0;
  for (const Golden& golden : kGolden) {
    const auto& cases = std::string(golden.name).rfind("mm_", 0) == 0 ? kMmengineCases : kTorchCases;
    ASSERT_EQ(golden.values.size(), static_cast<std::size_t>(kSteps / kBlock)) << golden.name;
    expect_equal(golden, cases.at(golden.name));
    ++seen;
  }
  EXPECT_EQ(seen, kTorchCases.size() + kMmengineCases.size());
}

TEST(ScheduleGolden, ReducesOnThePlateausThatPyTorchSees) {
  for (const auto& [name, options] : kPlateauCases) {
    const double sign = options.rule == "less" ? 1 : -1;
    PlateauWatch watch(options);
    std::vector<double> rates;
    double rate = 0.1;
    for (const double metric : kMetrics) {
      if (watch.observe(sign * metric)) rate = watch.reduced(rate);
      rates.push_back(rate);
    }
    const auto* golden =
        std::find_if(std::begin(kPlateaus), std::end(kPlateaus), [&](const Golden& g) { return g.name == name; });
    ASSERT_NE(golden, std::end(kPlateaus)) << name;
    ASSERT_EQ(rates.size(), golden->values.size());
    for (std::size_t i = 0; i < rates.size(); ++i)
      EXPECT_NEAR(rates[i], golden->values[i], 1e-15) << name << " after " << i;
  }
}

TEST(Plateau, ATieIsNoImprovement) {
  for (const char* rule : {"less", "greater"}) {
    PlateauWatch watch({.rule = rule, .patience = 0, .threshold = 0});
    EXPECT_FALSE(watch.observe(1));
    EXPECT_TRUE(watch.observe(1)) << rule;
  }
}

}  // namespace
}  // namespace duet
