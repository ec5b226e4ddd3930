#include <cmath>
#include <gtest/gtest.h>
#include "base/error.h"
#include "optim/groups/param_group.h"
#include "tests/optim/groups/described_task.h"
#include "tests/support/expect_error.h"

namespace duet {
namespace {

using testing::DescribedTask;

OptimizerOptions adamw() { return AdamW{.lr = 1.0, .weight_decay = 0.05}; }

double rate_of(const ParamGroups& groups, const std::string& group) {
  for (const ParamGroup& candidate : groups) {
    if (candidate.name == group) return candidate.numbers.count("lr") == 0 ? 1.0 : candidate.numbers.at("lr");
  }
  throw std::runtime_error("no group " + group);
}

DescribedTask vit(const std::string& type, const std::string& prefix) {
  DescribedTask task({{"", prefix.empty() ? type : "Segmentor"}, {"backbone", type}});
  for (const char* token : {"pos_embed", "cls_token"}) task.add(prefix + token, {1, 1, 4});
  task.add(prefix + "patch_embed.weight", {4, 4});
  for (const char* block : {"0", "1"}) task.add(prefix + "blocks." + block + ".fc.weight", {4, 4});
  task.add(prefix + "norm.bias", {4});
  task.add("head.weight", {4, 2});
  return task;
}

TEST(LayerDecay, TokensAreNotDecayedUnderAPrefixUnlessStrict) {
  const auto decay_of = [](bool strict, const std::string& prefix) {
    const DescribedTask task = vit("MAE", prefix);
    const LayerDecayOptions options = {.num_layers = 2, .decay_rate = 0.5, .strict_names = strict};
    const ParamGroups groups = layer_decay_groups(task, adamw(), options);
    EXPECT_EQ(groups[0].parameters[0].first, prefix + "pos_embed");
    return groups[0].numbers.count("weight_decay") == 0 ? 0.05 : groups[0].numbers.at("weight_decay");
  };
  EXPECT_EQ(decay_of(false, "backbone."), 0.0);
  EXPECT_EQ(decay_of(true, "backbone."), 0.05);  // as mmsegmentation does
}

TEST(LayerDecay, TheTasksOwnDepthsComeBeforeTheClass) {
  DescribedTask task(std::vector<ModuleInfo>{{"", "MAE"}});
  task.add("early.weight", {2, 2});
  task.add("late.weight", {2, 2});
  task.set_depth("early.weight", {0, 5});
  task.set_depth("late.weight", {4, 5});
  const ParamGroups groups = layer_decay_groups(task, adamw(), {.decay_rate = 0.5});
  EXPECT_EQ(rate_of(groups, "layer_0_decay"), 0.0625);
  EXPECT_EQ(rate_of(groups, "layer_4_decay"), 1.0);

  LayerDecayOptions options = {.decay_rate = 0.5};
  options.depth = [](const std::string& name) { return LayerDepth{name[0] == 'e' ? 1 : 2, 3}; };
  EXPECT_EQ(rate_of(layer_decay_groups(task, adamw(), options), "layer_1_decay"), 0.5);

  task.add("forgotten.weight", {2, 2});
  expect_error<ConfigError>([&] { layer_decay_groups(task, adamw(), {.decay_rate = 0.5}); },
                            {"no depth for 'forgotten.weight'"});
  options.depth = [](const std::string&) { return LayerDepth{3, 3}; };
  expect_error<ConfigError>([&] { layer_decay_groups(task, adamw(), options); }, {"depth 3 of 3", "0 to count - 1"});
}

TEST(LayerDecay, SaysWhatToGiveForAModelItDoesNotKnow) {
  const LayerDecayOptions options = {.num_layers = 2, .decay_rate = 0.5};
  expect_error<ConfigError>([&] { layer_decay_groups(vit("ResNetImpl", "backbone."), adamw(), options); },
                            {"'ResNet'", "ConvNeXt, BEiT, MAE or VisionTransformer", "Task::layer_depth"});
  DescribedTask unknown;
  unknown.add("weight", {2, 2});
  expect_error<ConfigError>([&] { layer_decay_groups(unknown, adamw(), options); },
                            {"lists no modules", "Task::layer_depth"});
}

TEST(LayerDecay, RefusesOptionsThatCannotBe) {
  const DescribedTask task = vit("BEiT", "backbone.");
  const auto refuses = [&task](const LayerDecayOptions& options, const std::string& part) {
    expect_error<ConfigError>([&] { layer_decay_groups(task, adamw(), options); }, {part});
  };
  refuses({.num_layers = 2}, "decay_rate is 0, expected a number in (0, 1]");
  refuses({.num_layers = 0, .decay_rate = 0.5}, "num_layers is missing");
  refuses({.num_layers = 2, .decay_rate = 0.5, .decay_type = "block_wise"},
          "'block_wise', expected layer_wise or stage_wise");
  refuses({.num_layers = 2, .decay_rate = 0.5, .decay_type = "stage_wise"}, "which has no stages");
}

TEST(LayerDecay, RefusesNamesBeyondTheBackbone) {
  const auto refuses = [](const std::string& type, const std::string& name, const std::vector<std::string>& parts) {
    DescribedTask task({{"", type}});
    task.add(name, {4, 4});
    const LayerDecayOptions options = {.num_layers = 6, .decay_rate = 0.5};
    expect_error<ConfigError>([&] { layer_decay_groups(task, adamw(), options); }, parts);
  };
  refuses("ConvNeXt", "stages.2.26.gamma", {"'stages.2.26.gamma' lies at depth 11", "num_layers is 6", "at most 7"});
  refuses("ConvNeXt", "stages.4.0.gamma", {"stage 4", "at most 3"});
  refuses("ConvNeXt", "stages.first.0.gamma", {"expected a number at place 1"});
  refuses("ViT", "layers.7.ln1.weight", {"lies at depth 8", "at most 7"});
}

}  // namespace
}  // namespace duet
