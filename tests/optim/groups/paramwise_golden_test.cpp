#include <algorithm>
#include <sstream>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/torch.h>
#include "core/task.h"
#include "optim/groups/param_group.h"
#include "tests/optim/optimizers/described_cases.h"

namespace duet {
namespace {

// Every parameter's options against those of mmengine's and mmsegmentation's own constructors, on the same models built
// of LibTorch's layers.

using Json = nlohmann::json;
using torch::nn::Module;

const char* const kGolden =
#include "tests/optim/groups/paramwise_golden.inc"
    ;

// By their class names the rules know these.
struct BEiT : Module {};
struct MAE : Module {};
struct ConvNeXt : Module {};
struct VisionTransformer : Module {};
struct DeformConv2d : Module {};
struct ModulatedDeformConv2d : Module {};

template <class T>
std::shared_ptr<Module> make() {
  return std::make_shared<T>();
}

std::shared_ptr<Module> make_named(const std::string& type) {
  static const std::map<std::string, std::shared_ptr<Module> (*)()> kTypes = {
      {"BEiT", make<BEiT>},
      {"MAE", make<MAE>},
      {"ConvNeXt", make<ConvNeXt>},
      {"VisionTransformer", make<VisionTransformer>},
      {"DeformConv2d", make<DeformConv2d>},
      {"ModulatedDeformConv2d", make<ModulatedDeformConv2d>}};
  const auto found = kTypes.find(type);
  return found == kTypes.end() ? std::make_shared<Module>() : found->second();
}

std::shared_ptr<Module> make_layer(const std::string& type, const std::vector<int64_t>& a) {
  namespace n = torch::nn;
  if (type == "Conv1d") return n::Conv1d(n::Conv1dOptions(a[0], a[1], a[2]).groups(a[3]).bias(a[4] != 0)).ptr();
  if (type == "Conv2d") return n::Conv2d(n::Conv2dOptions(a[0], a[1], a[2]).groups(a[3]).bias(a[4] != 0)).ptr();
  if (type == "ConvTranspose2d") {
    return n::ConvTranspose2d(n::ConvTranspose2dOptions(a[0], a[1], a[2]).groups(a[3]).bias(a[4] != 0)).ptr();
  }
  if (type == "Linear") return n::Linear(n::LinearOptions(a[0], a[1]).bias(a[2] != 0)).ptr();
  if (type == "Embedding") return n::Embedding(a[0], a[1]).ptr();
  if (type == "LSTM") return n::LSTM(a[0], a[1]).ptr();
  if (type == "LayerNorm") return n::LayerNorm(n::LayerNormOptions({a[0]})).ptr();
  if (type == "GroupNorm") return n::GroupNorm(a[0], a[1]).ptr();
  if (type == "BatchNorm1d") return n::BatchNorm1d(a[0]).ptr();
  if (type == "BatchNorm2d") return n::BatchNorm2d(a[0]).ptr();
  if (type == "InstanceNorm2d") return n::InstanceNorm2d(n::InstanceNorm2dOptions(a[0]).affine(true)).ptr();
  throw std::runtime_error("no layer " + type);
}

std::vector<int64_t> numbers_in(std::string text) {
  std::vector<int64_t> numbers;
  std::replace(text.begin(), text.end(), ',', ' ');
  std::istringstream words(text);
  for (int64_t number = 0; words >> number;) numbers.push_back(number);
  return numbers;
}

std::shared_ptr<Module> build(const Json& node) {
  std::shared_ptr<Module> module;
  if (node.contains("args")) {
    module = make_layer(node["type"], node["args"]);
  } else {
    module = make_named(node["type"]);
    for (const std::string text : node["parameters"]) {
      const std::size_t colon = text.find(':');
      module->register_parameter(text.substr(0, colon), torch::zeros(numbers_in(text.substr(colon + 1))));
    }
    for (const auto& child : node["children"]) module->register_module(child[0].get<std::string>(), build(child[1]));
  }
  if (node.contains("frozen")) {
    for (at::Tensor& parameter : module->parameters()) parameter.requires_grad_(false);
  }
  return module;
}

void tie(Module& root, Module& module, const Json& node) {
  if (node.contains("tied")) {
    for (const auto& [name, target] : node["tied"].items()) {
      module.register_parameter(name, root.named_parameters()[target.get<std::string>()]);
    }
  }
  if (!node.contains("children")) return;
  for (const auto& child : node["children"]) tie(root, *module.named_children()[child[0].get<std::string>()], child[1]);
}

std::unique_ptr<Task> make_tree_task(const Json& tree) {
  const std::shared_ptr<Module> module = build(tree);
  tie(*module, *module, tree);
  return make_task(module, [](Module&, const Batch&) { return torch::zeros({}); });
}

CustomKey custom_key_of(const Json& json) {
  CustomKey key;
  for (const auto& [name, value] : json.items()) {
    if (name == "lr_mult") {
      key.lr_mult = value;
    } else if (name == "decay_mult") {
      key.decay_mult = value;
    } else if (name == "betas") {
      key.numbers["beta1"] = value[0];
      key.numbers["beta2"] = value[1];
    } else {
      key.numbers[name] = value;
    }
  }
  return key;
}

ParamwiseOptions paramwise_of(Json json) {
  ParamwiseOptions options;
  const Json custom_keys = json.value("custom_keys", Json::object());
  for (const auto& [key, custom] : custom_keys.items()) options.custom_keys[key] = custom_key_of(custom);
  json.erase("custom_keys");
  testing::set_options(ParamwiseOptions::fields(), &options, json);
  return options;
}

LayerDecayOptions decay_of(const Json& json) {
  LayerDecayOptions options{.strict_names = true};
  testing::set_options(LayerDecayOptions::fields(), &options, json);
  return options;
}

// What was left out is the optimizer's own.
using Table = std::map<std::string, std::map<std::string, double>>;

Table table_of(const ParamGroups& groups, const Json& optimizer) {
  Table table;
  for (const ParamGroup& group : groups) {
    std::map<std::string, double> numbers = {{"lr", optimizer["lr"]}, {"weight_decay", optimizer["weight_decay"]}};
    if (optimizer.contains("momentum")) numbers["momentum"] = optimizer["momentum"];
    if (optimizer.contains("betas")) numbers["beta1"] = optimizer["betas"][0], numbers["beta2"] = optimizer["betas"][1];
    for (const auto& [name, value] : group.numbers) numbers[name] = value;
    for (const auto& parameter : group.parameters) {
      EXPECT_TRUE(table.emplace(parameter.first, numbers).second) << parameter.first << " is in two groups";
    }
  }
  return table;
}

Table table_of(const Json& groups) {
  Table table;
  for (const auto& group : groups) {
    for (const std::string name : group["parameters"])
      table[name] = group["numbers"].get<std::map<std::string, double>>();
  }
  return table;
}

class ParamwiseGolden : public ::testing::TestWithParam<std::size_t> {};

Json golden() {
  static const Json json = Json::parse(kGolden);
  return json;
}

TEST_P(ParamwiseGolden, EveryParameterHasTheOptionsOfTheOriginal) {
  const Json all = golden();
  const Json& test_case = all["cases"][GetParam()];
  SCOPED_TRACE(test_case["model"].dump() + test_case["config"].dump());
  const auto task = make_tree_task(all["models"][test_case["model"].get<std::string>()]);
  Json numbers = test_case["optimizer"];
  numbers.erase("type");
  const OptimizerOptions optimizer =
      testing::described_options({{"type", test_case["optimizer"]["type"]}, {"options", numbers}});
  const bool by_depth = test_case["constructor"] == "LearningRateDecayOptimizerConstructor";
  const ParamGroups groups = by_depth ? layer_decay_groups(*task, optimizer, decay_of(test_case["config"]))
                                      : paramwise_groups(*task, optimizer, paramwise_of(test_case["config"]));

  // Bit for bit: the same multiplications in the same order.
  EXPECT_EQ(table_of(groups, test_case["optimizer"]), table_of(test_case["groups"]));
  ASSERT_EQ(groups.size(), test_case["groups"].size());
  for (std::size_t i = 0; i < groups.size(); ++i) {
    EXPECT_EQ(groups[i].parameters.front().first, test_case["groups"][i]["parameters"][0].get<std::string>());
    if (by_depth) {
      EXPECT_EQ(groups[i].name, test_case["groups"][i]["name"].get<std::string>());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, ParamwiseGolden, ::testing::Range(std::size_t{0}, golden()["cases"].size()));

}  // namespace
}  // namespace duet
