#include "optim/optimizers/optimizer_options.h"
#include <limits>
#include <map>
#include <variant>
#include <gtest/gtest.h>
#include "base/error.h"
#include "optim/optimizers/detail/optimizer.h"
#include "tests/optim/optimizers/optimizer_cases.h"
#include "tests/support/expect_error.h"

namespace duet::testing {
namespace {

TEST(OptimizerOptions, DefaultsAreThoseOfTorch) {
  const auto expect_numbers = [](const std::string& type, const std::map<std::string, double>& expected) {
    const auto optimizer = Optimizer::create(OptimizerOptions::of_type(type), initial_parameters());
    std::map<std::string, double> found;
    for (const std::string& name : optimizer->names()) found.emplace(name, optimizer->get(0, name));
    EXPECT_EQ(found, expected) << type;
  };
  expect_numbers("SGD", {{"lr", 1e-3}, {"weight_decay", 0}, {"momentum", 0}, {"dampening", 0}});
  expect_numbers("Adam", {{"lr", 1e-3}, {"weight_decay", 0}, {"beta1", 0.9}, {"beta2", 0.999}, {"eps", 1e-8}});
  expect_numbers("AdamW", {{"lr", 1e-3}, {"weight_decay", 1e-2}, {"beta1", 0.9}, {"beta2", 0.999}, {"eps", 1e-8}});
  expect_numbers("Adagrad", {{"lr", 1e-2}, {"weight_decay", 0}, {"lr_decay", 0}, {"eps", 1e-10}});
  expect_numbers("RMSprop", {{"lr", 1e-2}, {"weight_decay", 0}, {"alpha", 0.99}, {"eps", 1e-8}});
  expect_numbers(
      "NAdam",
      {{"lr", 2e-3}, {"weight_decay", 0}, {"beta1", 0.9}, {"beta2", 0.999}, {"eps", 1e-8}, {"momentum_decay", 4e-3}});
  expect_numbers("RAdam", {{"lr", 1e-3}, {"weight_decay", 0}, {"beta1", 0.9}, {"beta2", 0.999}, {"eps", 1e-8}});
  expect_numbers("Lion", {{"lr", 1e-4}, {"weight_decay", 0}, {"beta1", 0.9}, {"beta2", 0.99}});
  expect_numbers(
      "Muon",
      {{"lr", 1e-3}, {"weight_decay", 0.1}, {"momentum", 0.95}, {"eps", 1e-7}, {"beta1", 0.9}, {"beta2", 0.999}});
  expect_numbers("Adadelta", {{"lr", 1}, {"weight_decay", 0}, {"rho", 0.9}, {"eps", 1e-6}});
  expect_numbers("Adafactor", {{"lr", 1e-2}, {"weight_decay", 0}, {"beta2_decay", -0.8}, {"eps2", 1e-3}, {"d", 1}});
  expect_numbers("Adamax", {{"lr", 2e-3}, {"weight_decay", 0}, {"beta1", 0.9}, {"beta2", 0.999}, {"eps", 1e-8}});
  expect_numbers("ASGD", {{"lr", 1e-2}, {"weight_decay", 0}, {"lambd", 1e-4}, {"alpha", 0.75}, {"t0", 1e6}});
  expect_numbers("Rprop", {{"lr", 1e-2}});
  expect_numbers("SparseAdam", {{"lr", 1e-3}, {"beta1", 0.9}, {"beta2", 0.999}, {"eps", 1e-8}});
}

TEST(OptimizerOptions, ValidationNamesTheField) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double inf = std::numeric_limits<double>::infinity();
  const auto expect_field = [](const std::string& field, const OptimizerOptions& options) {
    expect_error<ConfigError>([&] { options.validate(); }, {"[" + options.type() + "]", field});
    expect_error<ConfigError>([&] { Optimizer::create(options, initial_parameters()); }, {field});
  };
  expect_error<ConfigError>([] { OptimizerOptions::of_type("Lamb"); }, {"[OptimizerOptions]", "type", "'Lamb'"});
  for (const double bad : {-1e-9, nan, inf}) {
    expect_field("lr", AdamW{.lr = bad});
    expect_field("weight_decay", AdamW{.weight_decay = bad});
    expect_field("eps", AdamW{.eps = bad});
    expect_field("betas[0]", AdamW{.betas = {{bad, 0.9}}});
    expect_field("betas[1]", AdamW{.betas = {{0.9, bad}}});
    expect_field("momentum", SGD{.momentum = bad});
    expect_field("dampening", SGD{.dampening = bad});
    expect_field("alpha", RMSprop{.alpha = bad});
    expect_field("momentum_decay", NAdam{.momentum_decay = bad});
    expect_field("lr_decay", Adagrad{.lr_decay = bad});
    expect_field("initial_accumulator_value", Adagrad{.initial_accumulator_value = bad});
    expect_field("rho", Adadelta{.rho = bad});
    expect_field("eps1", Adafactor{.eps1 = bad});
    expect_field("eps2", Adafactor{.eps2 = bad});
    expect_field("beta2_decay", Adafactor{.beta2_decay = -bad});
    expect_field("betas[1]", Adamax{.betas = {{0.9, bad}}});
    expect_field("lambd", ASGD{.lambd = bad});
    expect_field("alpha", ASGD{.alpha = bad});
    expect_field("t0", ASGD{.t0 = bad});
    expect_field("step_sizes[0]", Rprop{.step_sizes = {{bad, 1}}});
    expect_field("etas", Rprop{.etas = {{bad, 1.2}}});
    expect_field("eps", SparseAdam{.eps = bad});
    expect_field("tolerance_grad", LBFGS{.tolerance_grad = bad});
  }
  expect_field("betas[0]", AdamW{.betas = {{1.0, 0.9}}});
  expect_field("betas[1]", AdamW{.betas = {{0.9, 1.0}}});
  expect_field("dampening", SGD{.dampening = 1.5});
  expect_field("nesterov", SGD{.nesterov = true});
  expect_field("nesterov", SGD{.momentum = 0.9, .dampening = 0.1, .nesterov = true});
  expect_field("ns_steps", Muon{.ns_steps = 0});
  expect_field("rho", Adadelta{.rho = 1.5});
  expect_field("d", Adafactor{.d = 0.5});
  expect_field("etas", Rprop{.etas = {{0.5, 1}}});
  expect_field("etas", Rprop{.etas = {{1, 1.2}}});
  expect_field("step_sizes", Rprop{.step_sizes = {{1, 0.5}}});
  expect_field("adjust_lr_fn", Muon{.adjust_lr_fn = "spectral"});
  expect_field("line_search_fn", LBFGS{.line_search_fn = "armijo"});
  expect_field("max_iter", LBFGS{.max_iter = 0});
  OptimizerOptions(AdamW{.lr = 0, .weight_decay = 0, .betas = {{0, 0}}, .eps = 0}).validate();
}

// The compiler refuses it where the type is known.
TEST(OptimizerOptions, AnOptionThatTheTypeDoesNotHaveIsRefused) {
  const auto expect_refused = [](const std::string& field, OptimizerOptions options, const OptionValue& value) {
    expect_error<ConfigError>([&] { options.set(field, value); }, {"'" + field + "'", options.type(), "known: lr"});
  };
  expect_refused("momentum", AdamW{}, 0.9);
  expect_refused("amsgrad", NAdam{}, true);
  expect_refused("betas", SGD{}, std::vector{0.9, 0.99});
  expect_refused("eps", Lion{}, 1e-8);
  expect_refused("decoupled_weight_decay", AdamW{}, true);
  expect_refused("weight_decay", LBFGS{}, 0.1);
  expect_refused("weight_decay", Rprop{}, 0.1);
  expect_refused("weight_decay", SparseAdam{}, 0.1);
  expect_refused("centered", Adagrad{}, true);
}

TEST(OptimizerOptions, ACopyOfOptionsIsItsOwn) {
  const OptimizerOptions first = SGD{.lr = 0.5};
  OptimizerOptions second = first;
  second.set("lr", 0.25);
  EXPECT_EQ(first.as<SGD>().lr, 0.5);
  EXPECT_EQ(second.as<SGD>().lr, 0.25);
  EXPECT_EQ(second.get_if<AdamW>(), nullptr);
}

// Other values of an option, of which some may be out of range.
std::vector<OptionValue> others(const OptionField& field, const OptionValue& value) {
  std::vector<OptionValue> values;
  if (const auto* flag = std::get_if<bool>(&value)) values.emplace_back(!*flag);
  if (const auto* count = std::get_if<int64_t>(&value)) values = {*count + 1, *count - 1};
  if (const auto* number = std::get_if<double>(&value)) values = {*number / 2, 0.1, 2.0, -0.1};
  if (const auto* pair = std::get_if<std::vector<double>>(&value)) {
    for (std::size_t i = 0; i < pair->size(); ++i) {
      std::vector<double> changed = *pair;
      changed[i] /= 2;
      values.emplace_back(changed);
    }
  }
  if (value.index() == 0 && field.kind == OptionField::Kind::kBool) values.emplace_back(true);
  if (value.index() == 0 && field.kind == OptionField::Kind::kNumber) values.emplace_back(0.1);
  values.insert(values.end(), field.choices.begin(), field.choices.end());
  return values;
}

// What 120 steps come to: weights and state, or nothing where the options cannot be.
std::vector<float> outcome_of(const OptimizerOptions& options) try {
  const NamedTensors parameters = initial_parameters();
  const auto optimizer = Optimizer::create(options, parameters);
  for (int64_t step = 0; step < 120; ++step) golden_step(*optimizer, parameters, optimizer->get(0, "lr"), step);
  std::vector<float> values = values_of(parameters);
  const StateDict state = optimizer->state_dict();
  for (const auto& item : state.tensors()) {
    for (const float value : values_of(item.second)) values.push_back(value);
  }
  return values;
} catch (const std::exception&) {
  return {};
}

TEST(OptimizerOptions, EveryOptionOfEveryOptimizerChangesItsSteps) {
  for (const std::string& type : OptimizerOptions::built_in_types()) {
    if (type == "LBFGS") continue;  // which evaluates the loss
    OptimizerOptions base = OptimizerOptions::of_type(type);
    for (const auto& [name, value] : std::map<std::string, OptionValue>{
             {"momentum", 0.9}, {"weight_decay", 0.1}, {"betas", std::vector<double>{0.5, 0.9}}}) {
      if (base.fields().find(name) != nullptr && type != "Muon") base.set(name, value);
    }
    const std::vector<float> plain = outcome_of(base);
    ASSERT_FALSE(plain.empty()) << type;
    for (const OptionField& field : base.fields()) {
      bool acts = false;
      for (const OptionValue& value : others(field, field.get(base.data()))) {
        OptimizerOptions changed = base;
        changed.set(field.name, value);
        const std::vector<float> outcome = outcome_of(changed);
        acts = acts || (!outcome.empty() && outcome != plain);
      }
      EXPECT_TRUE(acts) << type << ": " << field.name << " changes nothing";
    }
  }
}

}  // namespace
}  // namespace duet::testing
