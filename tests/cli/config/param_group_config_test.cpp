#include <gtest/gtest.h>
#include "base/error.h"
#include "cli/config/run_config.h"
#include "cli/registry.h"
#include "optim/groups/detail/param_group_builder.h"
#include "tests/optim/groups/described_task.h"
#include "tests/support/expect_error.h"

namespace duet {
namespace {

using testing::DescribedTask;
using Numbers = std::map<std::string, double>;

TrainerOptions read_wrapper(const std::string& optim_wrapper) {
  const std::string text =
      "model: {type: Mlp}\noptim_wrapper:\n  optimizer: {type: AdamW, lr: 0.5, weight_decay: 0.25}\n";
  return parse_run_config(ConfigNode::parse_text(text + optim_wrapper, "c.yaml"), "c").trainer;
}

DescribedTask model() {
  DescribedTask task({{"", "MAE"}, {"norm", "LayerNorm", ModuleKind::kNorm}});
  task.add("pos_embed", {1, 2, 2});
  task.add("norm.weight", {2});
  task.add("head.weight", {2, 2});
  return task;
}

ParamGroups groups_of(const std::string& optim_wrapper) {
  const TrainerOptions options = read_wrapper(optim_wrapper);
  DescribedTask task = model();
  return options.param_groups(task, options.optimizer);
}

TEST(ParamGroupConfig, NothingIsOneGroup) {
  EXPECT_FALSE(read_wrapper("").param_groups);
  EXPECT_FALSE(read_wrapper("  paramwise_cfg: {}\n  constructor: DefaultOptimWrapperConstructor\n").param_groups);
  EXPECT_FALSE(read_wrapper("  paramwise_cfg: null\n").param_groups);
}

TEST(ParamGroupConfig, ReadsParamwiseCfg) {
  const ParamGroups groups = groups_of(R"(  paramwise_cfg:
    custom_keys:
      pos_embed: {decay_mult: 0.0}
      head: {lr_mult: 2, betas: [0.5, 0.75], weight_decay: 0.125}
    norm_decay_mult: 0.5
)");
  ASSERT_EQ(groups.size(), 3U);
  EXPECT_EQ(groups[0].numbers, (Numbers{{"weight_decay", 0.0}}));
  EXPECT_EQ(groups[1].numbers, (Numbers{{"weight_decay", 0.125}}));
  EXPECT_EQ(groups[2].numbers, (Numbers{{"lr", 1.0}, {"weight_decay", 0.125}, {"beta1", 0.5}, {"beta2", 0.75}}));
}

TEST(ParamGroupConfig, ReadsLayerDecay) {
  const std::string constructor = "  constructor: LearningRateDecayOptimizerConstructor\n";
  const ParamGroups groups =
      groups_of(constructor + "  paramwise_cfg: {num_layers: 1, decay_rate: 0.5, decay_type: layer_wise}\n");
  ASSERT_EQ(groups.size(), 3U);
  EXPECT_EQ(groups[0].name, "layer_0_no_decay");
  EXPECT_EQ(groups[0].numbers, (Numbers{{"lr", 0.125}, {"weight_decay", 0.0}}));
  EXPECT_EQ(groups[2].numbers, Numbers{});
  expect_error<ConfigError>([&] { read_wrapper(constructor); }, {"c.yaml", "paramwise_cfg.decay_rate", "is missing"});
  expect_error<ConfigError>(
      [&] { read_wrapper(constructor + "  paramwise_cfg: {decay_rate: 0.9, custom_keys: {norm: {}}}\n"); },
      {"unknown key 'custom_keys'", "decay_rate"});
}

TEST(ParamGroupConfig, RefusesWithKeyAndRange) {
  for (const auto& [wrapper, message] : std::vector<std::pair<std::string, std::string>>{
           {"  paramwise_cfg: {norm_decay_mul: 0}\n",
            "c.yaml:4: unknown key 'norm_decay_mul' in optim_wrapper.paramwise_cfg; known: "},
           {"  paramwise_cfg: {custom_keys: {norm: {decay_mult: -1}}}\n",
            "custom_keys.norm.decay_mult is -1, expected a number >= 0"},
           {"  constructor: DefaultOptimWraperConstructor\n", "did you mean 'DefaultOptimWrapperConstructor'?"}})
    expect_error<ConfigError>([&] { read_wrapper(wrapper); }, {message});
  // What only the model and the optimizer can tell is reported with the place of the options.
  expect_error<ConfigError>([] { groups_of("  paramwise_cfg: {custom_keys: {head: {lr_mul: 0.1}}}\n"); },
                            {"c.yaml:4", "optim_wrapper.paramwise_cfg", "lr_mul = 0.1 for 'head.weight'", "known: "});
}

TEST(ParamGroupConfig, TakesConstructorsOfTheUsersOwn) {
  register_optim_wrapper_constructor("HeadFirst", [](const ConfigNode& node) -> ParamGroupsFn {
    const double factor = node.need<double>("factor");
    return [factor](const ModelInfo& model, const OptimizerOptions& optimizer) {
      NamedTensors all = model.named_parameters();
      ParamGroups groups = {{"head", {all.back()}, {{"lr", factor * base_numbers(optimizer).at("lr")}}}};
      all.pop_back();
      groups.push_back({"rest", all, {}});
      return groups;
    };
  });
  const ParamGroups groups = groups_of("  constructor: HeadFirst\n  paramwise_cfg: {factor: 4}\n");
  ASSERT_EQ(groups.size(), 2U);
  EXPECT_EQ(groups[0].numbers, (Numbers{{"lr", 2.0}}));
  expect_error<ConfigError>([] { read_wrapper("  constructor: HeadFirst\n  paramwise_cfg: {factor: 4, factr: 5}\n"); },
                            {"unknown key 'factr'"});
  expect_error<ConfigError>(
      [] { register_optim_wrapper_constructor("HeadFirst", [](const ConfigNode&) { return ParamGroupsFn(); }); },
      {"'HeadFirst' is registered twice"});
}

}  // namespace
}  // namespace duet
