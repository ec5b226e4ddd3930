#include <gtest/gtest.h>
#include "base/error.h"
#include "cli/config/run_config.h"
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

std::vector<std::string> given(int64_t batch_size, int64_t global, int64_t accumulate) {
  std::vector<std::string> words;
  const auto add = [&](const char* key, int64_t value) {
    if (value > 0) words.push_back(key + std::to_string(value));
  };
  add("data.train.batch_size=", batch_size);
  add("trainer.global_batch_size=", global);
  add("trainer.accumulate=", accumulate);
  return words;
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
    const auto words = given(c.batch_size, c.global, c.accumulate);
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

}  // namespace
}  // namespace duet
