#include <map>
#include <string>
#include <vector>
#include <gtest/gtest.h>
#include "optim/schedules/detail/schedule_rules.h"
#include "tests/support/torch_reference.h"

namespace duet {
namespace {

constexpr int64_t kSteps = 2000;
constexpr int64_t kEpoch = 50;

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

// Factors that overlap one another, in another order than they begin.
const std::vector<Schedule> kProducts = {Linear{.start_factor = 0.2, .end_factor = 0.9, .begin = 30, .end = 700},
                                         Step{.step_size = 130, .gamma = 0.9, .begin = 100, .end = 1600},
                                         Exponential{.gamma = 0.999, .begin = 100, .end = 900},
                                         Constant{.factor = 0.7, .begin = 300, .end = 1200},
                                         Exponential{.gamma = 0.98, .begin = 1000, .end = 1010},
                                         Linear{.start_factor = 0.5, .end_factor = 0.8, .begin = 600, .end = 1900},
                                         MultiStep{.milestones = {1, 77, 1500}, .gamma = 0.8}};

// As in schedule_reference.py.
const std::map<std::string, Case> kCases = {
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
    {"products", {kProducts}},
    {"weighted_restarts", {{CosineRestart{.periods = {400, 1, 700}, .restart_weights = {1, 0.7, 0.3}}}}},
    {"polynomial_to_a_floor", {{Polynomial{.power = 0.9, .eta_min_ratio = 0.2}}}},
    {"cosine_to_a_share", {{Cosine{.eta_min_ratio = 0.1, .end = 1200}}, 0.2}},
    {"cosine_step", {{Cosine{.eta_min = 0.01, .end = 900}, Step{.step_size = 400, .begin = 1000}}}},
};

const std::map<std::string, ReduceOnPlateau> kPlateauCases = {
    {"less_rel", {.factor = 0.5, .patience = 3}},
    {"greater_abs", {.rule = "greater", .patience = 1, .threshold = 0.05, .threshold_rule = "abs", .cooldown = 3}},
    {"min_value", {.factor = 0.3, .patience = 0, .min_value = 0.001}},
    {"eps", {.factor = 0.9, .patience = 2, .eps = 0.005}},
};

class ScheduleGolden : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string path = testing::reference_path("optim/schedule.safetensors");
    references_ = testing::torch_reference(path);
    if (references_.tensors().empty()) GTEST_SKIP() << testing::no_reference(path, "make_references.py");
  }
  StateDict references_;
};

TEST_F(ScheduleGolden, EqualsPyTorchOver2000Steps) {
  const ScheduleRun run = {kSteps, kEpoch};
  for (const auto& [name, test] : kCases) {
    const at::Tensor expected = references_.tensor(name);
    ASSERT_EQ(expected.numel(), kSteps) << name;
    validate_schedules(test.schedules, run);
    const ScheduleCurve curve(test.schedules, test.param, run);
    for (int64_t step = 0; step < kSteps; ++step) {
      ASSERT_NEAR(curve.at(step, test.initial), expected.const_data_ptr<double>()[step], 1e-12) << name << " " << step;
    }
  }
}

TEST_F(ScheduleGolden, ReducesOnThePlateausThatPyTorchSees) {
  const at::Tensor metrics = references_.tensor("plateau.metrics");
  for (const auto& [name, options] : kPlateauCases) {
    const at::Tensor expected = references_.tensor("plateau." + name);
    const double sign = options.rule == "greater" ? -1 : 1;
    PlateauWatch watch(options);
    double rate = 0.1;
    for (int64_t i = 0; i < metrics.numel(); ++i) {
      if (watch.observe(sign * metrics.const_data_ptr<double>()[i])) rate = watch.reduced(rate);
      EXPECT_NEAR(rate, expected.const_data_ptr<double>()[i], 1e-15) << name << " after " << i;
    }
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
