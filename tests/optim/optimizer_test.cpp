#include <duet/optim/optimizer.h>

#include <ATen/Functions.h>
#include <ATen/Version.h>
#include <duet/core/error.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <map>

#include "../support/expect_error.h"
#include "../support/sample_state.h"

namespace duet {
namespace {

using at::Tensor;

struct Golden {
  std::string name;
  int64_t update;
  std::vector<float> values;
};

const std::vector<Golden>& goldens() {
  static const std::vector<Golden> all = {
#include "optimizer_golden.inc"
  };
  return all;
}

// As in make_optimizer_golden.py.
const std::map<std::string, OptimizerOptions>& cases() {
  static const std::map<std::string, OptimizerOptions> all = {
      {"sgd", {.type = "SGD", .lr = 0.1}},
      {"sgd_momentum", {.type = "SGD", .lr = 0.1, .momentum = 0.9}},
      {"sgd_nesterov", {.type = "SGD", .lr = 0.05, .momentum = 0.9, .nesterov = true}},
      {"sgd_dampening", {.type = "SGD", .lr = 0.05, .momentum = 0.8, .dampening = 0.3}},
      {"sgd_weight_decay", {.type = "SGD", .lr = 0.1, .weight_decay = 0.01}},
      {"sgd_everything",
       {.type = "SGD", .lr = 0.03, .weight_decay = 0.05, .momentum = 0.7, .nesterov = true, .maximize = true}},
      {"adam", {.type = "Adam", .lr = 0.01}},
      {"adam_amsgrad", {.type = "Adam", .lr = 0.01, .amsgrad = true}},
      {"adam_weight_decay", {.type = "Adam", .lr = 0.02, .weight_decay = 0.1, .betas = {0.8, 0.95}, .eps = 1e-6}},
      {"adam_maximize", {.type = "Adam", .lr = 0.01, .maximize = true}},
      {"adamw", {.type = "AdamW", .lr = 0.01}},
      {"adamw_no_decay", {.type = "AdamW", .lr = 0.01, .weight_decay = 0.0}},
      {"adamw_everything",
       {.type = "AdamW", .lr = 0.02, .weight_decay = 0.2, .betas = {0.7, 0.9}, .eps = 1e-4, .amsgrad = true, .maximize = true}},
  };
  return all;
}

Tensor formula(int64_t numel, int64_t factor, int64_t shift, int64_t modulus, int64_t middle, float divisor) {
  std::vector<float> values;
  for (int64_t i = 0; i < numel; ++i) values.push_back(static_cast<float>((i * factor + shift) % modulus - middle) / divisor);
  return at::tensor(values);
}

const std::vector<std::vector<int64_t>> kSizes = {{3, 5}, {17}, {}};

NamedTensors initial() {
  NamedTensors parameters;
  for (int64_t p = 0; p < 3; ++p) {
    const auto& sizes = kSizes[static_cast<std::size_t>(p)];
    Tensor value = formula(c10::multiply_integers(sizes), 7, 3 * p, 11, 5, 8).reshape(sizes);
    parameters.emplace_back("p" + std::to_string(p), value.requires_grad_(true));
  }
  return parameters;
}

bool has_gradient(int64_t parameter, int64_t update, bool skips) {
  return !skips || !((parameter == 1 && update % 3 == 1) || (parameter == 2 && update < 4));
}

void step(Optimizer& optimizer, const NamedTensors& parameters, double lr, int64_t update, bool skips) {
  optimizer.set(0, "lr", lr / static_cast<double>(1 + update / 10));
  for (int64_t p = 0; p < 3; ++p) {
    const Tensor& parameter = parameters[static_cast<std::size_t>(p)].second;
    parameter.mutable_grad() = has_gradient(p, update, skips)
                                   ? formula(parameter.numel(), 5, update * 3 + p, 13, 6, 16).reshape(parameter.sizes())
                                   : Tensor();
  }
  optimizer.step({});
  optimizer.end();
}

std::vector<float> values_of(const NamedTensors& parameters) {
  std::vector<float> values;
  for (const auto& item : parameters) {
    const Tensor flat = item.second.detach().flatten();
    values.insert(values.end(), flat.const_data_ptr<float>(), flat.const_data_ptr<float>() + flat.numel());
  }
  return values;
}

void expect_bits(const std::vector<float>& expected, const std::vector<float>& found, const std::string& where) {
  ASSERT_EQ(expected.size(), found.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(std::bit_cast<uint32_t>(expected[i]), std::bit_cast<uint32_t>(found[i]))
        << where << " element " << i << ": " << expected[i] << " became " << found[i];
  }
}

bool has_fma() { return at::get_cpu_capability() != "DEFAULT"; }  // the goldens were made with it

// Without the numbers that the optimizer was made with.
StateDict carried(const StateDict& state) {
  StateDict kept;
  for (const auto& [name, tensor] : state.tensors()) kept.set(name, tensor);
  for (const auto& [name, value] : state.values()) {
    if (name.rfind("configured.", 0) != 0) kept.set(name, value);
  }
  return kept;
}

class OptimizerTrajectory : public ::testing::TestWithParam<std::tuple<std::string, bool>> {
 protected:
  void SetUp() override {
    if (!has_fma()) GTEST_SKIP() << "the goldens need a CPU with AVX2";
  }
  std::string name() const { return std::get<0>(GetParam()); }
  bool skips() const { return std::get<1>(GetParam()); }
  // Compares `parameters` after `updates` with torch.optim's, where the goldens have them.
  bool compare(const NamedTensors& parameters, int64_t updates) const {
    for (const Golden& golden : goldens()) {
      if (golden.name != name() + (skips() ? "_skips" : "") || golden.update != updates) continue;
      expect_bits(golden.values, values_of(parameters), golden.name + " after " + std::to_string(updates));
      return true;
    }
    return false;
  }
};

TEST_P(OptimizerTrajectory, HasTheBitsOfTorchOptim) {
  const OptimizerOptions& options = cases().at(name());
  const NamedTensors parameters = initial();
  const auto optimizer = Optimizer::create(options, parameters);
  int compared = 0;
  for (int64_t update = 0; update < 50; ++update) {
    step(*optimizer, parameters, options.lr, update, skips());
    compared += compare(parameters, update + 1) ? 1 : 0;
  }
  EXPECT_EQ(compared, 4);
}

TEST_P(OptimizerTrajectory, GoesOnFromAStateInAnOptimizerOfOtherValues) {
  const OptimizerOptions& options = cases().at(name());
  for (const int64_t moved : {0, 1, 3, 20}) {
    NamedTensors parameters = initial();
    auto optimizer = Optimizer::create(options, parameters);
    for (int64_t update = 0; update < 50; ++update) {
      if (update == moved) {
        OptimizerOptions others = options;
        others.lr = 7;
        others.weight_decay = 0.5;
        others.betas = {0.1, 0.2};
        others.eps = 0.25;
        if (others.momentum != 0) others.momentum = 0.125;
        if (!others.nesterov) others.dampening = 0.75;
        NamedTensors copies;
        for (const auto& [key, value] : parameters) copies.emplace_back(key, value.detach().clone().requires_grad_(true));
        auto fresh = Optimizer::create(others, copies);
        if (moved == 3) step(*fresh, copies, 7, 0, false);  // one that has a state of its own already
        for (std::size_t p = 0; p < copies.size(); ++p) copies[p].second.detach().copy_(parameters[p].second.detach());
        fresh->load_state_dict(optimizer->state_dict());
        expect_same_state(carried(fresh->state_dict()), carried(optimizer->state_dict()));
        for (const std::string& number : optimizer->names()) EXPECT_EQ(fresh->get(0, number), optimizer->get(0, number)) << number;
        parameters = copies;
        optimizer = std::move(fresh);
      }
      step(*optimizer, parameters, options.lr, update, skips());
      compare(parameters, update + 1);
    }
  }
}

std::vector<std::string> case_names() {
  std::vector<std::string> names;
  for (const auto& entry : cases()) names.push_back(entry.first);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Torch, OptimizerTrajectory, ::testing::Combine(::testing::ValuesIn(case_names()), ::testing::Bool()),
                         [](const auto& info) { return std::get<0>(info.param) + (std::get<1>(info.param) ? "_skips" : ""); });

TEST(Optimizer, AParameterThatSkipsUpdatesCountsItsOwnSteps) {
  const NamedTensors parameters = initial();
  const auto optimizer = Optimizer::create({.type = "AdamW"}, parameters);
  for (int64_t update = 0; update < 10; ++update) step(*optimizer, parameters, 0.1, update, /*skips=*/true);
  const StateDict state = optimizer->state_dict();
  EXPECT_EQ(state.tensor("step.p0").item<float>(), 10);
  EXPECT_EQ(state.tensor("step.p1").item<float>(), 7);
  EXPECT_EQ(state.tensor("step.p2").item<float>(), 6);
}

TEST(Optimizer, GradScaleDividesTheGradients) {
  for (const std::string type : {"SGD", "Adam", "AdamW"}) {
    std::vector<float> results[2];
    for (const bool scaled : {false, true}) {
      const NamedTensors parameters = initial();
      const auto optimizer = Optimizer::create({.type = type, .lr = 0.1, .momentum = type == "SGD" ? 0.9 : 0.0}, parameters);
      for (int64_t update = 0; update < 5; ++update) {
        for (const auto& item : parameters) {
          item.second.mutable_grad() = formula(item.second.numel(), 5, update, 13, 6, scaled ? 4.0F : 16.0F).reshape(item.second.sizes());
        }
        optimizer->step(scaled ? at::full({}, 4.0, at::kFloat) : Tensor());
      }
      results[scaled] = values_of(parameters);
    }
    expect_bits(results[0], results[1], type);
  }
}

TEST(Optimizer, AGradientOfAnotherLayoutIsTheSameGradient) {
  std::vector<float> results[2];
  for (const bool transposed : {false, true}) {
    const Tensor weight = formula(20, 7, 0, 11, 5, 8).reshape({4, 5}).requires_grad_(true);
    const auto optimizer = Optimizer::create({.type = "AdamW", .lr = 0.1}, {{"weight", weight}});
    for (int64_t update = 0; update < 5; ++update) {
      const Tensor gradient = formula(20, 5, update, 13, 6, 16).reshape({4, 5});
      weight.mutable_grad() = transposed ? gradient.t().contiguous().t() : gradient;
      optimizer->step({});
    }
    results[transposed] = values_of({{"weight", weight}});
  }
  expect_bits(results[0], results[1], "weight");
}

TEST(Optimizer, NoGradientAtAllChangesNothing) {
  const NamedTensors parameters = initial();
  const std::vector<float> before = values_of(parameters);
  const auto optimizer = Optimizer::create({.type = "AdamW", .lr = 0.1}, parameters);
  optimizer->step({});
  expect_bits(before, values_of(parameters), "nothing");
  EXPECT_EQ(optimizer->state_dict().tensor("step.p0").item<float>(), 0);
}

TEST(Optimizer, NumbersAreReadAndWrittenByName) {
  const auto adam = Optimizer::create({.type = "AdamW", .lr = 0.5}, initial());
  EXPECT_EQ(adam->group_count(), 1U);
  EXPECT_EQ(adam->names(), (std::vector<std::string>{"beta1", "beta2", "eps", "lr", "weight_decay"}));
  EXPECT_EQ(adam->get(0, "weight_decay"), 0.01);
  adam->set(0, "lr", 0.1);
  EXPECT_EQ(adam->get(0, "lr"), 0.1);
  expect_error<ConfigError>([&] { adam->get(0, "momentum"); }, {"'momentum'", "beta1", "weight_decay"});
  expect_error<ConfigError>([&] { adam->set(0, "momentum", 1); }, {"'momentum'"});
  expect_error<ConfigError>([&] { adam->get(1, "lr"); }, {"group 1"});
  const auto sgd = Optimizer::create({.type = "SGD"}, initial());
  EXPECT_EQ(sgd->names(), (std::vector<std::string>{"dampening", "lr", "momentum", "weight_decay"}));
  EXPECT_EQ(sgd->get(0, "weight_decay"), 0);
  expect_error<ConfigError>([&] { sgd->set(0, "momentum", 0.5); }, {"momentum = 0.5"});
}

TEST(Optimizer, ValidationNamesTheField) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double inf = std::numeric_limits<double>::infinity();
  const auto expect_field = [](const std::string& field, const OptimizerOptions& options) {
    expect_error<ConfigError>([&] { options.validate(); }, {"[OptimizerOptions]", field});
    expect_error<ConfigError>([&] { Optimizer::create(options, initial()); }, {field});
  };
  expect_field("type", {.type = "Adagrad"});
  for (const double bad : {-1e-9, nan, inf}) {
    expect_field("lr", {.lr = bad});
    expect_field("weight_decay", {.weight_decay = bad});
    expect_field("eps", {.eps = bad});
    expect_field("betas[0]", {.betas = {bad, 0.9}});
    expect_field("betas[1]", {.betas = {0.9, bad}});
    expect_field("momentum", {.type = "SGD", .momentum = bad});
    expect_field("dampening", {.type = "SGD", .dampening = bad});
  }
  expect_field("betas[0]", {.betas = {1.0, 0.9}});
  expect_field("betas[1]", {.betas = {0.9, 1.0}});
  expect_field("dampening", {.type = "SGD", .dampening = 1.5});
  expect_field("nesterov", {.type = "SGD", .nesterov = true});
  expect_field("nesterov", {.type = "SGD", .momentum = 0.9, .dampening = 0.1, .nesterov = true});
  OptimizerOptions({.lr = 0, .weight_decay = 0, .betas = {0, 0}, .eps = 0}).validate();
}

TEST(Optimizer, ParametersItCannotTrainAreNamed) {
  const auto expect_refused = [](const Tensor& tensor, const std::string& part) {
    expect_error<ConfigError>([&] { Optimizer::create({}, {{"good", at::ones({2})}, {"bad", tensor}}); }, {"'bad'", part});
  };
  expect_refused(at::ones({2}, at::kLong), "Long");
  expect_refused(at::ones({1}).expand({4}), "strides");
  expect_refused(at::ones({4, 4}).slice(1, 0, 2), "strides");
  expect_error<ConfigError>([] { Optimizer::create({}, {}); }, {"no trainable parameter"});
}

// A state that does not fit is refused before anything of it is taken.
TEST(Optimizer, AStateThatDoesNotFitChangesNothing) {
  const NamedTensors parameters = initial();
  const auto optimizer = Optimizer::create({.type = "AdamW"}, parameters);
  for (int64_t update = 0; update < 3; ++update) step(*optimizer, parameters, 0.1, update, false);
  const StateDict good = optimizer->state_dict();

  const auto other_parameters = initial();
  const auto other = Optimizer::create({.type = "AdamW", .lr = 3}, other_parameters);
  const auto copy_of = [](const StateDict& state) {
    StateDict copy;
    for (const auto& [name, tensor] : state.tensors()) copy.set(name, tensor.clone());
    for (const auto& [name, value] : state.values()) copy.set(name, value);
    return copy;
  };
  const StateDict before = copy_of(other->state_dict());
  const auto expect_refused = [&](const StateDict& state, const std::string& part) {
    expect_error<CheckpointError>([&] { other->load_state_dict(state); }, {part});
    expect_same_state(before, other->state_dict());
  };
  const auto without = [&](const std::string& left_out) {
    StateDict state;
    for (const auto& [name, tensor] : good.tensors()) if (name != left_out) state.set(name, tensor);
    for (const auto& [name, value] : good.values()) if (name != left_out) state.set(name, value);
    return state;
  };
  for (const auto& entry : good.tensors()) expect_refused(without(entry.first), entry.first);
  for (const auto& entry : good.values()) expect_refused(without(entry.first), entry.first);
  StateDict shaped = copy_of(good);
  shaped.set("exp_avg_sq.p2", at::zeros({2}));
  expect_refused(shaped, "exp_avg_sq.p2");
  StateDict typed = copy_of(good);
  typed.set("exp_avg.p1", at::zeros({17}, at::kDouble));
  expect_refused(typed, "exp_avg.p1");
  StateDict counted = copy_of(good);
  counted.set("step.p1", at::zeros({2}));
  expect_refused(counted, "step.p1");
  expect_refused(Optimizer::create({.type = "SGD"}, initial())->state_dict(), "SGD");
}

}  // namespace
}  // namespace duet
