#include <cmath>
#include <limits>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include "base/error.h"
#include "optim/groups/detail/described_layer.h"
#include "optim/groups/param_group.h"
#include "tests/optim/groups/described_task.h"
#include "tests/support/expect_error.h"
#include "tests/support/log_lines.h"

namespace duet {
namespace {

using ::testing::AllOf;
using testing::DescribedTask;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::stderr_of;

OptimizerOptions sgd() { return SGD{.lr = 0.1, .weight_decay = 0.5, .momentum = 0.9}; }

// A backbone with a norm, and a head.
DescribedTask segmentor() {
  DescribedTask task({{"", "Segmentor"}, {"backbone.norm", "LayerNormImpl", ModuleKind::kNorm}});
  task.add("backbone.fc.weight", {3, 3});
  task.add("backbone.fc.bias", {3});
  task.add("backbone.norm.weight", {3});
  task.add("backbone.norm.bias", {3});
  task.add("head.weight", {2, 3});
  return task;
}

std::map<std::string, double> numbers_of(const ParamGroups& groups, const std::string& name) {
  for (const ParamGroup& group : groups) {
    for (const auto& parameter : group.parameters) {
      if (parameter.first == name) return group.numbers;
    }
  }
  throw std::runtime_error(name + " is in no group");
}

using Numbers = std::map<std::string, double>;

TEST(Paramwise, EqualOptionsShareAGroupWhateverRuleGaveThem) {
  ParamwiseOptions options;
  options.norm_decay_mult = 0.0;
  options.bias_decay_mult = 0.0;
  options.custom_keys["head"] = {.decay_mult = 0.0};
  const ParamGroups groups = paramwise_groups(segmentor(), sgd(), options);
  ASSERT_EQ(groups.size(), 2U);
  EXPECT_EQ(groups[0].parameters.size(), 1U);
  EXPECT_EQ(groups[1].parameters.size(), 4U);
  EXPECT_EQ(groups[1].name, "bias+norm+head");
  EXPECT_EQ(groups[1].numbers, (Numbers{{"weight_decay", 0.0}}));
}

TEST(Paramwise, ComposeLetsARuleWorkBehindACustomKey) {
  ParamwiseOptions options;
  options.norm_decay_mult = 0.0;
  options.bias_lr_mult = 2.0;
  options.custom_keys["backbone"] = {.lr_mult = 0.5, .decay_mult = 0.25};
  const ParamGroups alone = paramwise_groups(segmentor(), sgd(), options);
  EXPECT_EQ(numbers_of(alone, "backbone.norm.weight"), (Numbers{{"lr", 0.05}, {"weight_decay", 0.125}}));

  options.compose = true;
  const ParamGroups composed = paramwise_groups(segmentor(), sgd(), options);
  EXPECT_EQ(numbers_of(composed, "backbone.norm.weight"), (Numbers{{"lr", 0.05}, {"weight_decay", 0.0}}));
  EXPECT_EQ(numbers_of(composed, "backbone.fc.bias"), (Numbers{{"weight_decay", 0.125}}));  // 0.1 * 0.5 * 2 = 0.1
  EXPECT_EQ(numbers_of(composed, "backbone.fc.weight"), (Numbers{{"lr", 0.05}, {"weight_decay", 0.125}}));
  EXPECT_EQ(numbers_of(composed, "head.weight"), Numbers{});

  options.custom_keys["backbone"].numbers = {{"lr", 0.3}};
  EXPECT_EQ(numbers_of(paramwise_groups(segmentor(), sgd(), options), "backbone.fc.bias").at("lr"), 0.6);
}

TEST(Paramwise, ATiedParameterCountsOnceUnderItsFirstName) {
  DescribedTask task = segmentor();
  task.add("tail.weight", task.named_parameters().back().second);
  ParamwiseOptions options;
  options.custom_keys["tail"] = {.lr_mult = 3.0};
  ParamGroups groups;
  const std::string warning = stderr_of([&] { groups = paramwise_groups(task, sgd(), options); });
  ASSERT_EQ(groups.size(), 1U);
  EXPECT_EQ(groups[0].parameters.size(), 5U);
  EXPECT_THAT(warning,
              AllOf(HasSubstr("'tail.weight' is the same tensor as 'head.weight'"), HasSubstr("bypass_duplicate")));

  options.bypass_duplicate = true;
  EXPECT_EQ(stderr_of([&] { paramwise_groups(task, sgd(), options); }), "");
  // Nothing to warn of where both names call for the same.
  EXPECT_EQ(stderr_of([&] { paramwise_groups(task, sgd(), {}); }), "");
}

TEST(Paramwise, AKeyThatFitsNothingIsNamed) {
  ParamwiseOptions options;
  options.custom_keys["bakcbone"] = {.lr_mult = 0.1};
  options.custom_keys["head"] = {.lr_mult = 0.1};
  const std::string warning = stderr_of([&] { paramwise_groups(segmentor(), sgd(), options); });
  EXPECT_THAT(warning,
              AllOf(HasSubstr("'bakcbone' is part of no parameter's name, expected a part of backbone.fc.weight"),
                    Not(HasSubstr("'head'"))));
}

TEST(Paramwise, RefusesWhatCannotWork) {
  const auto refuses = [](const ParamwiseOptions& options, const std::vector<std::string>& parts) {
    expect_error<ConfigError>([&] { paramwise_groups(segmentor(), sgd(), options); }, parts);
  };
  ParamwiseOptions options;
  options.norm_decay_mult = -0.5;
  refuses(options, {"norm_decay_mult is -0.5, expected a number >= 0"});
  options = {};
  options.bias_lr_mult = std::numeric_limits<double>::infinity();
  refuses(options, {"bias_lr_mult is inf"});
  options = {};
  options.custom_keys["head"] = {.lr_mult = std::nan("")};
  refuses(options, {"custom_keys.head.lr_mult is nan"});
  options.custom_keys["head"] = {.numbers = {{"beta3", 0.5}}};
  refuses(options, {"beta3 = 0.5 for 'head.weight'", "SGD has no such number", "known:"});
  options.custom_keys["head"] = {.numbers = {{"momentum", -1}}};
  refuses(options, {"momentum = -1"});
  options.custom_keys = {{"", {}}};
  refuses(options, {"empty key"});
}

TEST(Paramwise, RefusesRulesThatCouldNotTakeEffect) {
  DescribedTask unknown;
  unknown.add("norm.weight", {3});
  ParamwiseOptions options;
  options.norm_decay_mult = 0.0;
  expect_error<ConfigError>([&] { paramwise_groups(unknown, sgd(), options); }, {"Task::modules()"});
  options = {};
  options.flat_decay_mult = 0.0;  // asks for no kind of layer
  EXPECT_EQ(paramwise_groups(unknown, sgd(), options).size(), 1U);

  expect_error<ConfigError>([&] { paramwise_groups(unknown, LBFGS{}, options); }, {"set the optimizer's weight_decay"});
  EXPECT_THAT(stderr_of([&] { paramwise_groups(unknown, SGD{.lr = 1.0, .momentum = 0.9}, options); }),
              HasSubstr("set the optimizer's weight_decay"));
  const OptimizerOptions plain = AdamW{.lr = 1.0};  // has one by default
  EXPECT_EQ(numbers_of(paramwise_groups(unknown, plain, options), "norm.weight"), (Numbers{{"weight_decay", 0.0}}));
}

ModuleKind kind_at(const std::vector<ModuleInfo>& modules, const std::string& path) {
  for (const ModuleInfo& module : modules) {
    if (module.path == path) return module.kind;
  }
  throw std::runtime_error("no module " + path);
}

TEST(ModuleInfo, KnowsLayersOfFilesByTheirNames) {
  torch::nn::Module root;
  const auto add = [&](const std::string& name, const std::string& type) {
    return root.register_module(name, std::make_shared<DescribedLayer>(type));
  };
  add("conv", "Conv2d")->register_parameter("weight", torch::zeros({4, 1, 3, 3}));
  add("dense", "Conv2d")->register_parameter("weight", torch::zeros({4, 2, 3, 3}));
  add("norm", "LayerNorm");
  add("own", "LayerNorm2d");
  add("rms", "RMSNorm");
  add("dcn", "DeformConv2dPack");
  add("up", "ConvTranspose2d");
  const std::vector<ModuleInfo> modules = modules_of(root);
  EXPECT_EQ(kind_at(modules, "conv"), ModuleKind::kDepthwiseConv2d);
  EXPECT_EQ(kind_at(modules, "dense"), ModuleKind::kConv2d);
  EXPECT_EQ(kind_at(modules, "norm"), ModuleKind::kNorm);
  EXPECT_EQ(kind_at(modules, "own"), ModuleKind::kNorm);
  EXPECT_EQ(kind_at(modules, "rms"), ModuleKind::kOther);  // mmengine's rules do not count it either
  EXPECT_EQ(kind_at(modules, "dcn"), ModuleKind::kDeformableConv2d);
  EXPECT_EQ(kind_at(modules, "up"), ModuleKind::kOther);
}

TEST(ModuleInfo, KnowsWhatDerivesFromANorm) {
  struct OwnNorm : torch::nn::LayerNormImpl {
    OwnNorm() : LayerNormImpl(torch::nn::LayerNormOptions({3})) {}
  };
  torch::nn::Module root;
  root.register_module("own", std::make_shared<OwnNorm>());
  EXPECT_EQ(kind_at(modules_of(root), "own"), ModuleKind::kNorm);
}

}  // namespace
}  // namespace duet
