#include <gtest/gtest.h>
#include "base/error.h"
#include "cli/config/run_config.h"
#include "cli/registry.h"
#include "optim/groups/detail/param_group_builder.h"
#include "tests/optim/groups/described_task.h"
#include "tests/support/expect_error.h"
#include "tests/support/toy_tasks.h"

namespace duet {
namespace {

RunConfig config_with(const std::vector<std::string>& words, int64_t world_size = 1) {
  ConfigNode root = ConfigNode::parse_text(
      "model: {type: Mlp}\ndata: {train: {type: FashionMnist}}\ntrainer: {max_steps: 1}\n"
      "optim_wrapper: {optimizer: {type: SGD, lr: 0.1}}\n",
      "c.yaml");
  for (const std::string& word : words) root.override_with(word);
  return parse_run_config(root, "c", world_size);
}

struct Case {
  int64_t batch_size, global, accumulate, world_size;  // 0: not given
  int64_t then_batch_size, then_accumulate;            // 0: an error
};

// libai/engine/default.py, _check_batch_size.
TEST(GlobalBatchSize, FollowsLibaisArithmetic) {
  for (const Case& c : std::vector<Case>{{4, 32, 0, 2, 4, 4},
                                         {4, 32, 4, 2, 4, 4},
                                         {4, 32, 2, 2, 0, 0},
                                         {4, 30, 0, 2, 0, 0},
                                         {8, 4, 0, 1, 0, 0},
                                         {4, 0, 0, 2, 4, 1},
                                         {4, 0, 3, 2, 4, 3},
                                         {0, 32, 0, 2, 16, 1},
                                         {0, 32, 4, 2, 4, 4},
                                         {0, 30, 4, 2, 0, 0},
                                         {0, 3, 0, 4, 0, 0}}) {
    std::vector<std::string> words;
    for (const auto& [key, value] : {std::pair("data.train.batch_size=", c.batch_size),
                                     {"trainer.global_batch_size=", c.global},
                                     {"trainer.accumulate=", c.accumulate}}) {
      if (value > 0) words.push_back(key + std::to_string(value));
    }
    SCOPED_TRACE(::testing::PrintToString(words) + " on " + std::to_string(c.world_size));
    if (c.then_batch_size == 0) {
      expect_error<ConfigError>([&] { config_with(words, c.world_size); },
                                {"trainer.global_batch_size is " + std::to_string(c.global), "expected",
                                 std::to_string(c.world_size) + " process"});
      continue;
    }
    const RunConfig config = config_with(words, c.world_size);
    EXPECT_EQ(config.train->loader.batch_size, c.then_batch_size);
    EXPECT_EQ(config.trainer.loop.accumulate, c.then_accumulate);
    // What is saved with the run is what was written: another number of processes may go on from it.
    const int64_t others = c.global > 0 && (c.batch_size == 0 || c.accumulate == 0) ? 1 : c.world_size;
    const RunConfig again = parse_run_config(ConfigNode::parse_text(config.root.dump(), "saved"), "c", others);
    EXPECT_EQ(again.train->loader.batch_size * again.trainer.loop.accumulate * others,
              c.then_batch_size * c.then_accumulate * c.world_size);
  }
  expect_error<ConfigError>([] { config_with({"trainer.global_batch_size=0"}); }, {"global_batch_size", ">= 1"});
}

double lr_of(const RunConfig& config) { return config.trainer.optimizer.as<SGD>().lr; }

// mmengine/runner/runner.py, scale_lr: every group's lr times real / base; here accumulation counts as well.
TEST(AutoScaleLr, ScalesToTheSamplesOfAStep) {
  const std::vector<std::string> words = {"data.train.batch_size=8", "trainer.accumulate=3"};
  const auto with = [&](std::vector<std::string> more, int64_t world_size) {
    more.insert(more.end(), words.begin(), words.end());
    return lr_of(config_with(more, world_size));
  };
  EXPECT_EQ(with({}, 2), 0.1);
  EXPECT_EQ(with({"auto_scale_lr={base_batch_size: 16}"}, 2), 0.1);
  EXPECT_DOUBLE_EQ(with({"auto_scale_lr={enable: true, base_batch_size: 16}"}, 1), 0.15);
  EXPECT_DOUBLE_EQ(with({"auto_scale_lr={enable: true, base_batch_size: 16}"}, 2), 0.3);
  EXPECT_DOUBLE_EQ(with({"auto_scale_lr={enable: true, base_batch_size: 96}", "trainer.global_batch_size=48"}, 2),
                   0.05);
  expect_error<ConfigError>([&] { with({"auto_scale_lr={enable: true}"}, 1); }, {"base_batch_size"});
}

TEST(AutoScaleLr, ScalesTheRatesOfAllGroups) {
  const RunConfig config =
      config_with({"data.train.batch_size=32", "auto_scale_lr={enable: true, base_batch_size: 16}",
                   "optim_wrapper.paramwise_cfg={custom_keys: {weight: {lr_mult: 0.5}, bias: {lr: 0.7}}}"});
  const auto task = testing::mlp_task().make();
  int64_t groups = 0;
  for (const ParamGroup& group : config.trainer.param_groups(*task, config.trainer.optimizer)) {
    const bool is_bias = group.parameters.front().first.ends_with("bias");
    EXPECT_DOUBLE_EQ(group.numbers.at("lr"), is_bias ? 1.4 : 0.1);
    ++groups;
  }
  EXPECT_EQ(groups, 2);
}

TEST(OverfitBatches, TrainsAndValidatesOnTheSameFewBatches) {
  const RunConfig config = config_with({"trainer.overfit_batches=3"});
  EXPECT_FALSE(config.train->shuffle);
  EXPECT_EQ(config.limits.train.count, 3);
  EXPECT_EQ(config.limits.val.count, 3);
  EXPECT_EQ(config.limits.test.count, 0);
  EXPECT_EQ(config_with({"trainer.overfit_batches=0.5"}).limits.train.share, 0.5);
  EXPECT_TRUE(config_with({}).train->shuffle);
  expect_error<ConfigError>([] { config_with({"trainer.overfit_batches=3", "data.train.sampler=infinite"}); },
                            {"data.train.sampler is infinite", "overfit_batches"});
}

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
