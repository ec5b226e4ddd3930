#include <cmath>
#include <vector>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "optim/optimizers/detail/optimizer.h"
#include "tests/optim/optimizers/described_cases.h"
#include "tests/support/expect_error.h"
#include "tests/support/sample_state.h"
#include "tests/support/torch_reference.h"

namespace duet::testing {
namespace {

struct LbfgsCase {
  std::string function, case_name;
  OptimizerOptions options;
  bool wide;  // float64

  std::string name() const { return function + "_" + case_name + (wide ? "_float64" : "_float32"); }
};

std::vector<LbfgsCase> lbfgs_cases() {
  std::vector<LbfgsCase> all;
  for (const auto& one : described_cases(reference_path("optim/lbfgs.json"))) {
    for (const bool wide : {true, false})
      all.push_back({one.at("function"), one.at("case"), described_options(one), wide});
  }
  return all;
}

// Where torch.optim.LBFGS goes on this machine (lbfgs_reference.py).
const std::string kLbfgsPath = reference_path("optim/lbfgs.safetensors");

using LossAndGradient = std::pair<at::Tensor, at::Tensor>;

// Both functions as in lbfgs_reference.py.
LossAndGradient quadratic(const at::Tensor& x) {
  const at::Tensor i = at::arange(10, x.options());
  const at::Tensor d = (i + 1) / 4;
  const at::Tensor r = x - (i - 4) / 8;
  const at::Tensor total = x.sum();
  return {(d * r * r).sum() / 2 + total * total / 20, d * r + total / 10};
}

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
  Problem(const std::string& function, at::ScalarType dtype)
      : function_(function == "quadratic" ? quadratic : rosenbrock) {
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

// Of the largest weight. Both compute on this machine by the same operations, but for the line search's scalars between
// tensors, which round in float32 there and in doubles here. Rosenbrock's valley, whose curvatures differ by a factor
// of 2 500, lets such a rounding grow before it is forgotten.
double tolerance_of(const LbfgsCase& golden) {
  const bool grows = golden.function == "rosenbrock";
  if (golden.wide) return grows ? 1e-9 : 1e-12;
  return grows ? 5e-3 : 1e-6;
}

class LbfgsTrajectory : public ::testing::TestWithParam<LbfgsCase> {};

TEST_P(LbfgsTrajectory, IsThatOfTorchOptim) {
  const LbfgsCase& golden = GetParam();
  const StateDict reference = torch_reference(kLbfgsPath).part(golden.name());
  const at::Tensor steps = reference.tensor("steps");
  const Problem problem(golden.function, golden.wide ? at::kDouble : at::kFloat);
  const auto optimizer = Optimizer::create(golden.options, problem.parameters);
  double worst = 0;
  for (const at::Tensor& expected : steps.unbind()) {
    const double expected_loss = expected[0].item<double>();
    const double loss = problem.step(*optimizer);
    EXPECT_NEAR(loss, expected_loss, tolerance_of(golden) * std::max(1.0, expected_loss));
    const at::Tensor weights = expected.slice(0, 1);
    const double difference =
        (problem.weights() - weights).abs().max().item<double>() / weights.abs().max().item<double>();
    worst = std::max(worst, difference);
  }
  EXPECT_LE(worst, tolerance_of(golden));
  RecordProperty("largest_relative_difference", ::testing::PrintToString(worst));
  if (!golden.wide) return;  // where float32 stops depends on its last bits
  const int64_t evaluations = reference.tensor("func_evals").item<int64_t>();
  EXPECT_EQ(optimizer->state_dict().integer("state.n_iter"), reference.tensor("n_iter").item<int64_t>());
  EXPECT_EQ(optimizer->state_dict().integer("state.func_evals"), evaluations);
  EXPECT_EQ(problem.evaluations, evaluations);
}

TEST_P(LbfgsTrajectory, GoesOnFromItsState) {
  const LbfgsCase& golden = GetParam();
  const at::ScalarType dtype = golden.wide ? at::kDouble : at::kFloat;
  const Problem whole(golden.function, dtype);
  const auto uninterrupted = Optimizer::create(golden.options, whole.parameters);
  const Problem first(golden.function, dtype);
  const auto before = Optimizer::create(golden.options, first.parameters);
  for (int i = 0; i < 2; ++i) {
    whole.step(*uninterrupted);
    first.step(*before);
  }
  const Problem second(golden.function, dtype);
  const auto after = Optimizer::create(golden.options, second.parameters);
  after->load_state_dict(before->state_dict());
  for (std::size_t p = 0; p < 2; ++p) second.parameters[p].second.detach().copy_(first.parameters[p].second.detach());
  for (int i = 0; i < 3; ++i) {
    whole.step(*uninterrupted);
    second.step(*after);
  }
  expect_same_tensor("weights", whole.weights(), second.weights());
  expect_same_state(uninterrupted->state_dict(), after->state_dict());
}

TEST(LbfgsCases, AreThere) {
  if (lbfgs_cases().empty()) GTEST_SKIP() << no_reference(kLbfgsPath, "make_references.py");
  EXPECT_EQ(lbfgs_cases().size(), 24U);
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(LbfgsTrajectory);
INSTANTIATE_TEST_SUITE_P(Torch, LbfgsTrajectory, ::testing::ValuesIn(lbfgs_cases()),
                         [](const auto& info) { return info.param.name(); });

TEST(Lbfgs, LearningRateIsSetOrFollowsACurve) {
  const Problem problem("quadratic", at::kDouble);
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
  const Problem problem("quadratic", at::kDouble);
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

TEST(Lbfgs, AStateThatDoesNotFitChangesNothing) {
  const Problem problem("quadratic", at::kDouble);
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
