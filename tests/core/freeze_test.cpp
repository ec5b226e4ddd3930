#include <algorithm>
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include "base/device.h"
#include "base/error.h"
#include "core/task.h"
#include "make_trainer.h"
#include "tests/support/expect_error.h"

namespace duet {
namespace {

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
  const auto trainer = make_trainer(mode, task_of(net), {.optimizer = AdamW{.lr = 0.1}, .freeze = patterns});
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
      make_trainer(Mode::kEager, task_of(std::make_shared<Net>()), {.optimizer = AdamW{}, .freeze = {pattern}});
    };
  };
  expect_error<ConfigError>(with("backbon"), {"[freeze]", "'backbon'", "head.weight", "did you mean 'backbone'"});
  expect_error<ConfigError>(with("*"), {"[freeze]", "no parameter to train"});
  expect_error<ConfigError>(with(""), {"[freeze]", "empty pattern"});
  expect_error<ConfigError>(with(std::string(60, '*') + "x"), {"[freeze] found no module"});
}

INSTANTIATE_TEST_SUITE_P(BothModes, Freeze, ::testing::Values(Mode::kEager, Mode::kGraph));

}  // namespace
}  // namespace duet
