#include <algorithm>
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include "core/task.h"
#include "graph/graph_trainer.h"
#include "make_trainer.h"
#include "tests/support/expect_error.h"
#include "tests/support/modes.h"
#include "tests/support/trainer_runs.h"

namespace duet {
namespace {

using testing::make_trainer;

// One weight w = 0, loss = mean over the tokens that count of (w - y)^2: the gradient is -2 mean(y).
std::unique_ptr<Task> masked_task(bool counts_tokens) {
  torch::nn::Linear layer(torch::nn::LinearOptions(1, 1).bias(false));
  layer->weight.detach().zero_();
  const auto loss = [](torch::nn::LinearImpl& model, const Batch& batch) {
    const at::Tensor error = (model.forward(batch["one"]) - batch["y"]).square() * batch["mask"];
    return error.sum() / batch["mask"].sum();
  };
  if (!counts_tokens) return make_task(layer, loss);
  return make_task(layer, loss, [](const Batch& batch) { return batch["mask"].sum().item<double>(); });
}

Batch tokens(const std::vector<float>& y, const std::vector<float>& mask) {
  const auto rows = static_cast<int64_t>(y.size());
  return {
      {"one", at::ones({rows, 1})}, {"y", at::tensor(y).view({rows, 1})}, {"mask", at::tensor(mask).view({rows, 1})}};
}

class ModuleTaskWeight : public testing::InBothModes {};

TEST_P(ModuleTaskWeight, MakesMicroBatchesOfUnequalCountsOneMean) {
  const std::vector<Batch> micro_batches = {tokens({1, 0, 0, 0}, {1, 0, 0, 0}), tokens({3, 3, 3, 9}, {1, 1, 1, 0})};
  for (const bool counts_tokens : {false, true}) {
    TrainerOptions options;
    options.optimizer = SGD{.lr = 0.5};
    const auto trainer = make_trainer(GetParam(), masked_task(counts_tokens), options);
    trainer->step(micro_batches);
    // By tokens: mean(1, 3, 3, 3). By samples, which are four in each: (1 + 3) / 2.
    EXPECT_FLOAT_EQ(trainer->weights().tensor("weight").item<float>(), counts_tokens ? 2.5F : 2.0F);
  }
}

// A factor that is no tensor: without a key, the recording's would stay.
TEST(MakeTask, CapturesAStepOncePerGraphKey) {
  torch::nn::Linear layer(torch::nn::LinearOptions(1, 1).bias(false));
  double factor = 1;
  const auto forward = [](torch::nn::LinearImpl& net, const Batch& batch) { return net.forward(batch["x"]); };
  const auto loss = [&factor](const at::Tensor& prediction, const Batch&) { return prediction.sum() * factor; };
  const auto of_module = [&factor](torch::nn::LinearImpl& net, const Batch& batch) {
    return net.forward(batch["x"]).sum() * factor;
  };
  const auto key = [&factor] { return std::to_string(factor); };
  GraphStep steps[] = {
      GraphStep(make_task(layer, forward, loss, nullptr, key), {.optimizer = SGD{.lr = 1}, .device = "cpu"}),
      GraphStep(make_task(layer, of_module, key), {.optimizer = SGD{.lr = 1}, .device = "cpu"})};
  for (GraphStep& step : steps) {
    double expected = layer->weight.item<double>();
    for (int i = 0; i < 24; ++i) {
      factor = i % 3 + 1;
      step({{"x", at::ones({1, 1})}});
      expected -= factor;
    }
    EXPECT_NEAR(layer->weight.item<double>(), expected, 1e-4);
    EXPECT_EQ(step.report().size(), 3U);
    EXPECT_EQ(step.replays(), 24 - 2 * 3);
  }
}

// What a temporary gives may be kept, and walked over.
TEST(StateDict, LendsNothingOfATemporary) {
  const auto temporary = [] {
    StateDict state;
    state.set("weight", at::ones({3}));
    state.set("name", StateValue(std::string(100, 'x')));
    return state;
  };
  static_assert(!std::is_reference_v<decltype(temporary().tensors())>);
  static_assert(!std::is_reference_v<decltype(temporary().values())>);
  static_assert(!std::is_reference_v<decltype(temporary().tensor(""))>);
  static_assert(!std::is_reference_v<decltype(temporary().text(""))>);
  for (const auto& [name, tensor] : temporary().tensors()) EXPECT_EQ(name + std::to_string(tensor.numel()), "weight3");
  const std::string& text = temporary().text("name");
  EXPECT_EQ(text, std::string(100, 'x'));
}

DUET_IN_BOTH_MODES(ModuleTaskWeight);

struct Net : torch::nn::Module {
  torch::nn::Sequential backbone{torch::nn::Linear(4, 8), torch::nn::BatchNorm1d(8)};
  torch::nn::BatchNorm1d norm{8};
  torch::nn::Linear head{8, 2};

  Net() {
    register_module("backbone", backbone);
    register_module("norm", norm);
    register_module("head", head);
  }
  at::Tensor forward(const at::Tensor& x) { return head(norm(backbone->forward(x))); }
};

std::unique_ptr<Task> task_of(const std::shared_ptr<Net>& net) {
  return make_task(net, [](Net& own, const Batch& batch) { return own.forward(batch["input"]).square().mean(); });
}

// The values after some steps, by name.
std::map<std::string, at::Tensor> after_steps(Mode mode, const std::vector<std::string>& patterns, bool before) {
  seed_all(1);
  const auto net = std::make_shared<Net>();
  const auto trainer = duet::make_trainer(mode, task_of(net), {.optimizer = AdamW{.lr = 0.1}, .freeze = patterns});
  for (int step = 0; !before && step < 6; ++step) trainer->step({{"input", at::randn({5, 4})}});
  EXPECT_TRUE(net->norm->is_training());
  std::map<std::string, at::Tensor> values;
  for (const auto& [name, tensor] : trainer->task().named_parameters()) values[name] = tensor.detach().clone();
  for (const auto& [name, tensor] : trainer->task().named_buffers()) values[name] = tensor.clone();
  return values;
}

class Freeze : public ::testing::TestWithParam<Mode> {};

// Parameters and statistics of modules, parameters by wildcards; the others are those of eager mode.
TEST_P(Freeze, KeepsWhatFitsAPattern) {
  const std::vector<std::pair<std::vector<std::string>, std::vector<std::string>>> cases = {
      {{"backbone"}, {"backbone"}}, {{"*.bias"}, {".bias"}}, {{"backbone.1", "head.weight"}, {"backbone.1", "head.w"}}};
  for (const auto& [patterns, kept] : cases) {
    SCOPED_TRACE(patterns.front());
    const auto before = after_steps(GetParam(), patterns, true), after = after_steps(GetParam(), patterns, false);
    const auto in_eager = after_steps(Mode::kEager, patterns, false);
    for (const auto& [name, value] : after) {
      const bool is_kept = std::any_of(kept.begin(), kept.end(), [&name = name](const std::string& part) {
        return name.find(part) != std::string::npos;
      });
      EXPECT_EQ(at::equal(value, before.at(name)), is_kept) << name;
      EXPECT_TRUE(at::equal(value, in_eager.at(name))) << name;
    }
  }
}

TEST(Freeze, NamesWhatIsNotThere) {
  const auto with = [](const std::string& pattern) {
    return [pattern] {
      duet::make_trainer(Mode::kEager, task_of(std::make_shared<Net>()), {.optimizer = AdamW{}, .freeze = {pattern}});
    };
  };
  expect_error<ConfigError>(with("backbon"), {"[freeze]", "'backbon'", "head.weight", "did you mean 'backbone'"});
  expect_error<ConfigError>(with("*"), {"[freeze]", "no parameter to train"});
  expect_error<ConfigError>(with(""), {"[freeze]", "empty pattern"});
  expect_error<ConfigError>(with(std::string(60, '*') + "x"), {"[freeze] found no module"});
}

struct Dropped : torch::nn::Module {
  torch::nn::Linear layer{register_module("layer", torch::nn::Linear(4, 4))};
  torch::nn::Dropout drop{register_module("drop", torch::nn::Dropout(0.5))};
};

class ReplacedModule : public testing::InBothModes {};

// All is dropped in training, so that the loss tells.
TEST_P(ReplacedModule, HasATrainingFlagThatCounts) {
  const auto net = std::make_shared<Dropped>();
  const auto task = [&] {
    return make_task(
        net, [](Dropped& own, const Batch& batch) { return own.drop(own.layer(batch["x"])); },
        [](const at::Tensor& prediction, const Batch&) { return prediction.square().sum(); });
  };
  const auto trainer = duet::make_trainer(parse_mode(mode()), task(), {.optimizer = SGD{.lr = 0}});
  const Batch batch{{"x", at::ones({2, 4})}};
  for (int i = 0; i < 3; ++i) trainer->step(batch);
  std::vector<int64_t> before, after;
  trainer->task().append_key(before);
  net->drop = net->replace_module("drop", torch::nn::Dropout(1.0));
  trainer->task().append_key(after);
  EXPECT_NE(before, after);
  for (const bool is_on : {false, true, false}) {
    net->drop->train(is_on);
    for (int i = 0; i < 4; ++i) {
      trainer->predict(batch);
      EXPECT_EQ(trainer->step(batch).loss.item<float>() == 0, is_on);
      EXPECT_EQ(net->drop->is_training(), is_on);
    }
  }
}

DUET_IN_BOTH_MODES(ReplacedModule);

struct OneName : torch::nn::Module {
  at::Tensor weight = register_parameter("w", at::ones({2})), count = register_buffer("w", at::zeros({2}));
};

TEST(MakeTask, RefusesNoModuleAndOneNameOfTwoTensors) {
  const auto loss = [](auto& own, const Batch&) { return own.parameters()[0].sum(); };
  expect_error<ConfigError>([&] { make_task(std::shared_ptr<Net>(), loss); }, {"[make_task] the module is null"});
  expect_error<ConfigError>([&] { make_task(torch::nn::Linear(nullptr), loss); }, {"[make_task] the module is null"});
  expect_error<ConfigError>([&] { duet::make_trainer(Mode::kEager, make_task(std::make_shared<OneName>(), loss), {}); },
                            {"two tensors called 'w'", "rename one"});
}

INSTANTIATE_TEST_SUITE_P(BothModes, Freeze, ::testing::Values(Mode::kEager, Mode::kGraph));

}  // namespace
}  // namespace duet
