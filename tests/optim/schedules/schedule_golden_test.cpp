#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <string>
#include <vector>
#include <gtest/gtest.h>
#include "optim/schedules/plateau.h"
#include "optim/schedules/schedule_curve.h"

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
  std::vector<ScheduleOptions> schedules;
  double initial = 0.1;
  std::string param = "lr";
};

const OneCycleOptions kThreePhases = {.eta_max = 0.4,
                                      .total_steps = 1500,
                                      .pct_start = 0.25,
                                      .anneal_strategy = "linear",
                                      .three_phase = true,
                                      .cycle_momentum = true};
const ScheduleOptions kHalfWarmUp = {.type = "Linear", .end = 100, .start_factor = 0.01, .end_factor = 0.5};

// As in make_schedule_golden.py.
const std::map<std::string, Case> kTorchCases = {
    {"linear", {{{.type = "Linear", .end = 500}}}},
    {"constant", {{{.type = "Constant", .begin = 50, .end = 700, .factor = 1.0 / 3}}}},
    {"step", {{{.type = "Step", .step_size = 300}}, 0.3}},
    {"multi_step",
     {{{.type = "MultiStep", .begin = 100, .end = 1800, .milestones = {300, 900, 1750}, .gamma = 0.5}}, 0.3}},
    {"exponential", {{{.type = "Exponential", .gamma = 0.998}}}},
    {"exponential_per_epoch",
     {{{.type = "Exponential", .by_epoch = true, .convert_to_iter_based = true, .gamma = 0.9}}}},
    {"cosine", {{{.type = "Cosine", .eta_min = 0.001}}}},
    {"cosine_swings", {{{.type = "Cosine", .T_max = 300, .eta_min = 0.01}}}},
    {"polynomial", {{{.type = "Polynomial", .power = 0.9}}}},
    {"warm_restarts", {{{.type = "CosineRestart", .periods = {500, 500, 500, 500}, .eta_min = 0.002}}}},
    {"warm_restarts_doubled", {{{.type = "CosineRestart", .periods = {250, 500, 1000, 2000}}}}},
    {"one_cycle", {{{.type = "OneCycle", .one_cycle = {.eta_max = 0.4}}}}},
    {"one_cycle_momentum", {{{.type = "OneCycle", .one_cycle = {.cycle_momentum = true}}}, 0.9, "momentum"}},
    {"one_cycle_beta1",
     {{{.type = "OneCycle", .one_cycle = {.total_steps = 1000, .cycle_momentum = true, .base_momentum = 0.8}}},
      0.9,
      "momentum"}},
    {"three_phases", {{{.type = "OneCycle", .one_cycle = kThreePhases}}}},
    {"three_phases_momentum", {{{.type = "OneCycle", .one_cycle = kThreePhases}}, 0.9, "momentum"}},
    {"wsd_linear", {{{.type = "WSD", .wsd = {.warmup_steps = 100, .decay_ratio = 0.1}}}}},
    {"wsd_sqrt",
     {{{.type = "WSD", .end = 1500, .eta_min_ratio = 0.1, .wsd = {.decay_steps = 1000, .decay_type = "sqrt"}}}}},
    {"wsd_cosine",
     {{{.type = "WSD", .eta_min = 0.001, .wsd = {.warmup_ratio = 0.1, .decay_ratio = 0.9, .decay_type = "cosine"}}}}},
    {"sequential", {{{.type = "Linear", .end = 100, .start_factor = 0.01}, {.type = "Cosine", .begin = 100}}}},
    {"half_linear_cosine", {{kHalfWarmUp, {.type = "Cosine", .begin = 100, .end = 1500, .eta_min = 1e-5}}, 0.001}},
    {"linear_multi_step", {{{.type = "Linear", .end = 500}, {.type = "MultiStep", .milestones = {1200, 1700}}}, 0.02}},
    {"cosine_step",
     {{{.type = "Cosine", .end = 900, .eta_min = 0.01}, {.type = "Step", .begin = 1000, .step_size = 400}}}},
};

ScheduleOptions converted(ScheduleOptions schedule) {
  schedule.by_epoch = schedule.convert_to_iter_based = true;
  return schedule;
}

const std::map<std::string, Case> kMmengineCases = {
    {"mm_polynomial", {{{.type = "Polynomial", .begin = 40, .end = 1900, .power = 0.9, .eta_min = 1e-4}}}},
    {"mm_cosine_t_max", {{kHalfWarmUp, {.type = "Cosine", .begin = 100, .end = 1800, .T_max = 300, .eta_min = 0.01}}}},
    {"mm_cosine_ratio", {{kHalfWarmUp, {.type = "Cosine", .begin = 100, .eta_min_ratio = 0.05}}}},
    {"mm_restarts",
     {{kHalfWarmUp,
       {.type = "CosineRestart",
        .begin = 100,
        .periods = {300, 700, 400},
        .restart_weights = {1, 0.5, 0.25},
        .eta_min_ratio = 0.1}}}},
    {"mm_products",
     {{{.type = "Linear", .end = 600, .start_factor = 0.2},
       {.type = "Exponential", .begin = 200, .end = 1000, .gamma = 0.999},
       {.type = "Step", .begin = 50, .end = 1200, .step_size = 250, .gamma = 0.5},
       {.type = "Constant", .begin = 500, .end = 900, .factor = 0.3}}}},
    {"mm_epochs",
     {{{.type = "Linear", .end = 5, .by_epoch = true, .start_factor = 0.1},
       {.type = "Cosine", .begin = 5, .end = 38, .by_epoch = true, .eta_min = 1e-3}}}},
    {"mm_epochs_and_steps",
     {{{.type = "Linear", .end = 130},
       {.type = "MultiStep", .by_epoch = true, .milestones = {12, 30}},
       {.type = "Exponential", .by_epoch = true, .gamma = 0.97}}}},
    {"mm_epochs_restarts",
     {{{.type = "CosineRestart", .begin = 2, .by_epoch = true, .periods = {10, 20}, .restart_weights = {1, 0.5}}}}},
    {"mm_epochs_one_cycle", {{{.type = "OneCycle", .by_epoch = true, .one_cycle = {.eta_max = 0.4}}}}},
    {"mm_converted",
     {{converted({.type = "Linear", .end = 3, .start_factor = 0.1}),
       converted({.type = "Cosine", .begin = 3, .end = 40, .T_max = 30})}}},
    {"mm_converted_steps",
     {{converted({.type = "Step", .step_size = 7, .gamma = 0.6}),
       converted({.type = "MultiStep", .begin = 2, .milestones = {3, 20}}),
       converted({.type = "Constant", .begin = 1, .end = 9, .factor = 0.5})}}},
    {"mm_converted_polynomial", {{converted({.type = "Polynomial", .begin = 2, .end = 40, .power = 2})}}},
    {"mm_converted_restarts",
     {{converted({.type = "CosineRestart", .periods = {10, 30}, .restart_weights = {1, 0.3}, .eta_min = 0.01})}}},
    {"mm_converted_one_cycle",
     {{converted({.type = "OneCycle", .one_cycle = {.eta_max = 0.4, .total_steps = 40, .three_phase = true}})}}},
    {"mm_momentum",
     {{{.type = "Linear", .param_name = "momentum", .end = 200, .start_factor = 0.5},
       {.type = "Cosine", .param_name = "momentum", .begin = 200, .end = 1700, .eta_min = 0.6}},
      0.9,
      "momentum"}},
    {"mm_momentum_products",
     {{{.type = "Constant", .param_name = "momentum", .end = 400, .factor = 0.9},
       {.type = "Step", .param_name = "momentum", .begin = 100, .step_size = 300, .gamma = 0.95},
       {.type = "Exponential", .param_name = "momentum", .begin = 600, .gamma = 0.9995}},
      0.9,
      "momentum"}},
    {"mm_beta1",
     {{{.type = "MultiStep", .param_name = "momentum", .end = 1000, .milestones = {500, 900}, .gamma = 0.8},
       {.type = "Polynomial", .param_name = "momentum", .begin = 1000, .eta_min = 0.2}},
      0.9,
      "momentum"}},
    {"mm_beta1_restarts",
     {{{.type = "CosineRestart",
        .param_name = "momentum",
        .periods = {800, 1200},
        .restart_weights = {1, 0.9},
        .eta_min = 0.5}},
      0.9,
      "momentum"}},
};

const std::map<std::string, PlateauOptions> kPlateauCases = {
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
