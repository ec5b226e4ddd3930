#include "cli/config/schedule_config.h"
#include <array>
#include <cmath>
#include <gtest/gtest.h>
#include "base/error.h"
#include "optim/schedules/detail/schedule_rules.h"
#include "tests/support/expect_error.h"

namespace duet {
namespace {

// `entries`: a list in YAML.
std::vector<ScheduleConfig> read(const std::string& entries) {
  const ConfigNode root = ConfigNode::parse_text("param_scheduler: " + entries, "test.yaml");
  const auto schedules = read_schedules(root);
  root.reject_unknown();
  return schedules;
}

Schedule one(const std::string& entry) { return read("[" + entry + "]").at(0).options; }

template <class T>
T one(const std::string& entry) {
  return std::get<T>(one(entry));
}

TEST(ScheduleConfig, KnowsEveryKindUnderItsNames) {
  const std::vector<std::array<std::string, 2>> kinds = {{"Constant", ""},
                                                         {"Linear", ""},
                                                         {"Polynomial", ""},
                                                         {"Step", ", step_size: 3"},
                                                         {"MultiStep", ", milestones: [3]"},
                                                         {"Exponential", ", gamma: 0.9"},
                                                         {"Cosine", ""},
                                                         {"CosineRestart", ", periods: [3]"},
                                                         {"OneCycle", ""},
                                                         {"WSD", ", decay_ratio: 0.1"},
                                                         {"ReduceOnPlateau", ""}};
  for (const auto& [kind, keys] : kinds) {
    for (const char* suffix : {"", "LR", "ParamScheduler", "Momentum"}) {
      const Schedule schedule = one("{type: " + kind + suffix + keys + "}");
      EXPECT_EQ(type_of(schedule), kind);
      EXPECT_EQ(interval_of(schedule).param_name, std::string(suffix) == "Momentum" ? "momentum" : "lr");
    }
  }
  EXPECT_EQ(type_of(one("{type: PolyLR}")), "Polynomial");
  EXPECT_EQ(type_of(one("{type: CosineAnnealingMomentum}")), "Cosine");
  EXPECT_EQ(type_of(one("{type: ReduceLROnPlateau}")), "ReduceOnPlateau");
  EXPECT_EQ(interval_of(one("{type: LinearParamScheduler, param_name: weight_decay}")).param_name, "weight_decay");
}

TEST(ScheduleConfig, TakesMmenginesFactorsWithItsNames) {
  EXPECT_EQ(one<Linear>("{type: Linear}").start_factor, 0.001);
  EXPECT_EQ(one<Constant>("{type: Constant}").factor, 1.0);
  EXPECT_DOUBLE_EQ(one<Linear>("{type: LinearLR}").start_factor, 1.0 / 3);
  EXPECT_DOUBLE_EQ(one<Constant>("{type: ConstantMomentum}").factor, 1.0 / 3);
}

TEST(ScheduleConfig, ReadsTheKeysOfEveryKind) {
  const auto cosine = one<Cosine>("{type: Cosine, begin: 5, end: 90, T_max: 30, eta_min_ratio: 0.1}");
  EXPECT_EQ(cosine.begin, 5);
  EXPECT_EQ(cosine.end, 90);
  EXPECT_EQ(cosine.T_max, 30);
  EXPECT_EQ(cosine.eta_min_ratio, 0.1);
  const auto restart =
      one<CosineRestart>("{type: CosineRestart, periods: [3, 4], restart_weights: [1, 0.5], eta_min: 0.2}");
  EXPECT_EQ(restart.periods, (std::vector<int64_t>{3, 4}));
  EXPECT_EQ(restart.restart_weights, (std::vector<double>{1, 0.5}));
  EXPECT_EQ(restart.eta_min, 0.2);
  const auto cycle = one<OneCycle>(
      "{type: OneCycleLR, max_lr: 0.3, total_steps: 9, pct_start: 0.4, three_phase: true, "
      "anneal_strategy: linear, div_factor: 3, final_div_factor: 4, cycle_momentum: true, "
      "base_momentum: 0.7, max_momentum: 0.8}");
  EXPECT_EQ(cycle.eta_max, 0.3);
  EXPECT_EQ(cycle.total_steps, 9);
  EXPECT_EQ(cycle.pct_start, 0.4);
  EXPECT_EQ(cycle.anneal_strategy, "linear");
  EXPECT_EQ(cycle.div_factor, 3);
  EXPECT_EQ(cycle.final_div_factor, 4);
  EXPECT_TRUE(cycle.three_phase && cycle.cycle_momentum);
  EXPECT_EQ(cycle.base_momentum, 0.7);
  EXPECT_EQ(cycle.max_momentum, 0.8);
  const auto wsd = one<WSD>("{type: WSD, warmup_ratio: 0.2, decay_steps: 7, decay_type: sqrt}");
  EXPECT_EQ(wsd.warmup_ratio, 0.2);
  EXPECT_EQ(wsd.decay_steps, 7);
  EXPECT_EQ(wsd.decay_type, "sqrt");
  const auto plateau = one<ReduceOnPlateau>(
      "{type: ReduceOnPlateauLR, monitor: accuracy, rule: greater, factor: 0.5, patience: 3, "
      "threshold: 0.01, threshold_rule: abs, cooldown: 2, min_lr: 1.0e-5, eps: 0}");
  EXPECT_EQ(plateau.monitor, "accuracy");
  EXPECT_EQ(plateau.rule, "greater");
  EXPECT_EQ(plateau.factor, 0.5);
  EXPECT_EQ(plateau.patience, 3);
  EXPECT_EQ(plateau.threshold, 0.01);
  EXPECT_EQ(plateau.threshold_rule, "abs");
  EXPECT_EQ(plateau.cooldown, 2);
  EXPECT_EQ(plateau.min_value, 1e-5);
  EXPECT_EQ(plateau.eps, 0);
}

TEST(ScheduleConfig, CountsEpochsOrSteps) {
  const auto schedules = read(
      "[{type: LinearLR, by_epoch: true, convert_to_iter_based: true, end: 2}, "
      "{type: MultiStepLR, by_epoch: true, convert_to_iter_based: true, milestones: [3, 5]}, "
      "{type: ExponentialMomentum, gamma: 0.5, by_epoch: true, convert_to_iter_based: true}, "
      "{type: StepLR, step_size: 2, by_epoch: true}, {type: ConstantLR, end: 5}]");
  const auto resolved = resolve_schedules(schedules, 10);
  EXPECT_EQ(interval_of(resolved[0]).end, 20);
  EXPECT_EQ(std::get<MultiStep>(resolved[1]).milestones, (std::vector<int64_t>{30, 50}));
  EXPECT_EQ(interval_of(resolved[1]).end, -1);
  EXPECT_NEAR(std::pow(std::get<Exponential>(resolved[2]).gamma, 10), 0.5, 1e-15);
  EXPECT_EQ(std::get<Step>(resolved[3]).step_size, 2);  // not converted: it changes between epochs
  EXPECT_TRUE(interval_of(resolved[3]).by_epoch);
  EXPECT_EQ(interval_of(resolved[4]).end, 5);
  expect_error<ConfigError>([&] { resolve_schedules(schedules, 0); }, {"param_scheduler.0.by_epoch", "no epochs"});
}

TEST(ScheduleConfig, NamesKeyAndRangeOfNonsense) {
  const auto bad = [](const std::string& entry, const std::vector<std::string>& parts) {
    expect_error<ConfigError>([&] { read("[" + entry + "]"); }, parts);
  };
  bad("{type: CosineAnealingLR}",
      {"param_scheduler.0.type", "known: ", "OneCycle", "did you mean 'CosineAnnealingLR'"});
  bad("{type: LinearLR, param_name: momentum}", {"unknown key 'param_name'"});
  bad("{type: Step}", {"step_size is missing"});
  bad("{type: MultiStep}", {"milestones is missing"});
  bad("{type: Exponential}", {"gamma is missing"});
  bad("{type: CosineRestart}", {"periods is missing"});
  bad("{type: MultiStep, milestones: [99999999999]}", {"milestones holds 99999999999", "at most"});
  bad("{type: Cosine, T_max: -1}", {"T_max is -1"});
  bad("{type: Cosine, eta_min: 0.1, eta_min_ratio: 0.1}", {"eta_min", "not both"});
  bad("{type: Linear, T_max: 5}", {"unknown key 'T_max'"});
  bad("{type: OneCycle, eta_max: 1, max_lr: 1}", {"max_lr", "eta_max"});
  bad("{type: OneCycle, pct_start: 2}", {"pct_start is 2"});
  bad("{type: OneCycle, anneal_strategy: cosine}", {"anneal_strategy is 'cosine'", "cos, linear"});
  bad("{type: WSD}", {"param_scheduler.0", "decay_steps"});
  bad("{type: WSD, decay_ratio: 0.1, decay_type: step}", {"decay_type is 'step'", "sqrt"});
  bad("{type: ReduceOnPlateau, rule: min}", {"rule is 'min'", "less, greater"});
  bad("{type: ReduceOnPlateau, factor: 1}", {"factor is 1", "(0, 1)"});
}

}  // namespace
}  // namespace duet
