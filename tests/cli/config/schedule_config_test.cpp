#include <array>
#include <cmath>
#include <gtest/gtest.h>
#include "base/error.h"
#include "cli/config/run_config.h"
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

TEST(ScheduleConfig, TakesMmenginesFactorsAndPyTorchsKeys) {
  EXPECT_EQ(one<Linear>("{type: Linear}").start_factor, 0.001);
  EXPECT_EQ(one<Constant>("{type: Constant}").factor, 1.0);
  EXPECT_DOUBLE_EQ(one<Linear>("{type: LinearLR}").start_factor, 1.0 / 3);
  EXPECT_DOUBLE_EQ(one<Constant>("{type: ConstantMomentum}").factor, 1.0 / 3);
  EXPECT_EQ(one<OneCycle>("{type: OneCycleLR, max_lr: 0.3}").eta_max, 0.3);
  EXPECT_EQ(one<ReduceOnPlateau>("{type: ReduceOnPlateauLR, min_lr: 1.0e-5}").min_value, 1e-5);
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
  for (const auto& [entry, parts] : std::vector<std::pair<std::string, std::vector<std::string>>>{
           {"{type: CosineAnealingLR}", {"param_scheduler.0.type", "OneCycle", "did you mean 'CosineAnnealingLR'"}},
           {"{type: LinearLR, param_name: momentum}", {"unknown key 'param_name'"}},
           {"{type: MultiStep, milestones: [99999999999]}", {"milestones.0 is 99999999999"}},
           {"{type: OneCycle, eta_max: 1, max_lr: 1}", {"max_lr", "eta_max"}},
           {"{type: WSD}", {"param_scheduler.0", "decay_steps"}}})
    expect_error<ConfigError>([&] { one(entry); }, parts);
}

}  // namespace
}  // namespace duet
