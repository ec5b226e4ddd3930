#include <vector>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <torch/optim/lbfgs.h>
#include "base/error.h"
#include "optim/optimizers/detail/optimizer.h"
#include "tests/support/expect_error.h"
#include "tests/support/sample_state.h"

namespace duet::testing {
namespace {

using LossAndGradient = std::pair<at::Tensor, at::Tensor>;

// On ten numbers: sum(d * (x - m)^2) / 2 + (sum(x))^2 / 20.
LossAndGradient quadratic(const at::Tensor& x) {
  const at::Tensor i = at::arange(10, x.options());
  const at::Tensor d = (i + 1) / 4;
  const at::Tensor r = x - (i - 4) / 8;
  const at::Tensor total = x.sum();
  return {(d * r * r).sum() / 2 + total * total / 20, d * r + total / 10};
}

// sum((1 - a)^2 + 100 (b - a^2)^2) over neighbours a, b.
LossAndGradient rosenbrock(const at::Tensor& x) {
  const at::Tensor a = x.slice(0, 0, -1);
  const at::Tensor b = x.slice(0, 1);
  const at::Tensor u = 1 - a;
  const at::Tensor v = b - a * a;
  const at::Tensor gradient = at::zeros_like(x);
  gradient.slice(0, 0, -1).add_(-2 * u - 400 * a * v);
  gradient.slice(0, 1).add_(200 * v);
  return {(u * u + 100 * v * v).sum(), gradient};
}

class Problem {
 public:
  Problem(LossAndGradient (*function)(const at::Tensor&), at::ScalarType dtype) : function_(function) {
    const at::Tensor start = (at::arange(10, dtype) * 7).remainder(11).sub(5) / 8;
    parameters = {{"a", start.slice(0, 0, 6).reshape({2, 3}).clone().requires_grad_(true)},
                  {"b", start.slice(0, 6).clone().requires_grad_(true)}};
  }

  at::Tensor weights() const {
    return at::cat({parameters[0].second.detach().flatten(), parameters[1].second.detach()});
  }
  at::Tensor evaluate() const {
    ++evaluations;
    const auto [loss, gradient] = function_(weights());
    parameters[0].second.mutable_grad() = gradient.slice(0, 0, 6).reshape({2, 3}).clone();
    parameters[1].second.mutable_grad() = gradient.slice(0, 6).clone();
    return loss;
  }
  double step(Optimizer& optimizer) const {
    optimizer.begin();
    const double loss = optimizer.step_with([this] { return evaluate(); }).item<double>();
    optimizer.end();
    return loss;
  }

  NamedTensors parameters;
  mutable int64_t evaluations = 0;

 private:
  LossAndGradient (*function_)(const at::Tensor&);
};

struct LbfgsCase {
  std::string name;
  LossAndGradient (*function)(const at::Tensor&);
  LBFGS options;
};

// Without a line search L-BFGS diverges on Rosenbrock's function.
const std::vector<LbfgsCase> kLbfgsCases = {
    {"plain", quadratic, {}},
    {"short", quadratic, {.lr = 0.3, .max_iter = 4}},
    {"few_evaluations", quadratic, {.max_iter = 10, .max_eval = 3}},
    {"tolerances", quadratic, {.tolerance_grad = 0.1, .tolerance_change = 0.01}},
    {"line_search", rosenbrock, {.line_search_fn = "strong_wolfe"}},
    {"line_search_short", rosenbrock, {.lr = 0.3, .max_iter = 3, .history_size = 2, .line_search_fn = "strong_wolfe"}},
};

torch::optim::LBFGSOptions torch_options(const LBFGS& options) {
  torch::optim::LBFGSOptions given(options.lr);
  given.max_iter(options.max_iter).max_eval(options.max_eval).history_size(options.history_size);
  given.tolerance_grad(options.tolerance_grad).tolerance_change(options.tolerance_change);
  if (options.line_search_fn != "none") given.line_search_fn(options.line_search_fn);
  return given;
}

class LbfgsTrajectory : public ::testing::TestWithParam<LbfgsCase> {};

TEST_P(LbfgsTrajectory, IsThatOfTorchOptim) {
  const auto& [name, function, options] = GetParam();
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
    const Problem ours(function, dtype), theirs(function, dtype);
    const auto optimizer = Optimizer::create(options, ours.parameters);
    const std::vector<at::Tensor> parameters = {theirs.parameters[0].second, theirs.parameters[1].second};
    torch::optim::LBFGS torch(parameters, torch_options(options));
    for (int i = 0; i < 6; ++i) {
      EXPECT_EQ(ours.step(*optimizer), torch.step([&] { return theirs.evaluate(); }).item<double>()) << name << i;
      expect_same_tensor(name, theirs.weights(), ours.weights());
    }
    EXPECT_EQ(ours.evaluations, theirs.evaluations);
    EXPECT_EQ(optimizer->state_dict().integer("state.func_evals"), theirs.evaluations);
  }
}

TEST_P(LbfgsTrajectory, GoesOnFromItsState) {
  const auto& [name, function, options] = GetParam();
  const Problem whole(function, at::kFloat);
  const auto uninterrupted = Optimizer::create(options, whole.parameters);
  const Problem first(function, at::kFloat);
  const auto before = Optimizer::create(options, first.parameters);
  for (int i = 0; i < 2; ++i) {
    whole.step(*uninterrupted);
    first.step(*before);
  }
  const Problem second(function, at::kFloat);
  const auto after = Optimizer::create(options, second.parameters);
  after->load_state_dict(before->state_dict());
  for (std::size_t p = 0; p < 2; ++p) second.parameters[p].second.detach().copy_(first.parameters[p].second.detach());
  for (int i = 0; i < 3; ++i) {
    whole.step(*uninterrupted);
    second.step(*after);
  }
  expect_same_tensor("weights", whole.weights(), second.weights());
  expect_same_state(uninterrupted->state_dict(), after->state_dict());
}

INSTANTIATE_TEST_SUITE_P(Torch, LbfgsTrajectory, ::testing::ValuesIn(kLbfgsCases),
                         [](const auto& info) { return info.param.name; });

TEST(Lbfgs, LearningRateIsSetOrFollowsACurve) {
  const Problem problem(quadratic, at::kDouble);
  const auto optimizer = Optimizer::create(LBFGS{}, problem.parameters);
  EXPECT_EQ(optimizer->names(), std::vector<std::string>{"lr"});
  EXPECT_EQ(optimizer->get(0, "lr"), 1);
  optimizer->set_schedule("lr", [](std::size_t, int64_t applied) { return 1.0 / static_cast<double>(1 + applied); });
  problem.step(*optimizer);
  problem.step(*optimizer);
  EXPECT_EQ(optimizer->get(0, "lr"), 0.5);
  optimizer->set(0, "lr", 0.125);
  problem.step(*optimizer);
  EXPECT_EQ(optimizer->get(0, "lr"), 0.125);
  problem.step(*optimizer);
  EXPECT_EQ(optimizer->get(0, "lr"), 0.25);
  EXPECT_EQ(optimizer->applied(), 4);
  EXPECT_EQ(optimizer->applied_steps().item<int64_t>(), 4);
  expect_error<ConfigError>([&] { optimizer->get(0, "momentum"); }, {"'momentum'", "lr"});
  expect_error<ConfigError>([&] { optimizer->set(0, "lr", -1); }, {"lr = -1"});
}

TEST(Lbfgs, WhatItCannotDoIsNamed) {
  const Problem problem(quadratic, at::kDouble);
  const auto optimizer = Optimizer::create(LBFGS{}, problem.parameters);
  EXPECT_TRUE(optimizer->needs_closure());
  expect_error<ConfigError>([&] { optimizer->step(); }, {"[LBFGS]", "closure"});
  const NamedTensors mixed = {{"a", at::ones({2})}, {"b", at::ones({2}, at::kDouble)}};
  expect_error<ConfigError>([&] { Optimizer::create(LBFGS{}, mixed); }, {"'b'", "Double"});
  const ParamGroups two = {{"", {problem.parameters[0]}, {}}, {"", {problem.parameters[1]}, {}}};
  expect_error<ConfigError>([&] { Optimizer::create(LBFGS{}, two); }, {"2 parameter groups"});
  expect_error<CheckpointError>(
      [&] { optimizer->load_state_dict(Optimizer::create(SGD{}, problem.parameters)->state_dict()); }, {"SGD"});
}

TEST(Lbfgs, GoesOnWithAShorterHistory) {
  const Problem problem(quadratic, at::kDouble);
  const auto longer = Optimizer::create(LBFGS{.max_iter = 8}, problem.parameters);
  problem.step(*longer);
  const auto shorter = Optimizer::create(LBFGS{.max_iter = 8, .history_size = 2}, problem.parameters);
  shorter->load_state_dict(longer->state_dict());
  EXPECT_EQ(shorter->state_dict().integer("state.history"), 2);
  problem.step(*shorter);
}

TEST(Lbfgs, TakesGradientsOfAnyLayout) {
  const at::Tensor columns = at::ones({3, 4}, at::kDouble).t();
  const auto optimizer = Optimizer::create(LBFGS{}, {{"w", columns}});
  optimizer->begin();
  optimizer->step_with([&] {
    columns.mutable_grad() = columns.clone();
    EXPECT_FALSE(columns.grad().is_contiguous());
    return columns.square().sum() / 2;
  });
  optimizer->end();
  EXPECT_LT(columns.abs().max().item<double>(), 1e-6);
}

TEST(Lbfgs, AStateThatDoesNotFitChangesNothing) {
  const Problem problem(quadratic, at::kDouble);
  const auto optimizer = Optimizer::create(LBFGS{.max_iter = 3}, problem.parameters);
  problem.step(*optimizer);
  const StateDict good = optimizer->state_dict();
  const auto other = Optimizer::create(LBFGS{.max_iter = 3}, problem.parameters);
  const StateDict before = other->state_dict();
  StateDict bad = good;
  bad.set("state.old_stps.0", at::zeros({9}, at::kDouble));
  expect_error<CheckpointError>([&] { other->load_state_dict(bad); }, {"old_stps.0"});
  expect_same_state(before, other->state_dict());
}

}  // namespace
}  // namespace duet::testing
