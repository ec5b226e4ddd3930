#include "optim/optimizers/optimizer_options.h"
#include <gtest/gtest.h>
#include "base/error.h"
#include "optim/optimizers/detail/optimizer.h"
#include "tests/optim/optimizers/optimizer_cases.h"
#include "tests/support/expect_error.h"

namespace duet::testing {
namespace {

TEST(OptimizerOptions, ValidationNamesTheField) {
  const auto expect_field = [](const std::string& field, const OptimizerOptions& options) {
    expect_error<ConfigError>([&] { options.validate(); }, {"[" + options.type() + "]", field});
    expect_error<ConfigError>([&] { Optimizer::create(options, initial_parameters()); }, {field});
  };
  expect_error<ConfigError>([] { OptimizerOptions::of_type("Lamb"); }, {"[OptimizerOptions]", "type", "'Lamb'"});
  expect_field("lr", AdamW{.lr = -1e-9});
  expect_field("betas[1]", AdamW{.betas = {{0.9, 1.0}}});
  expect_field("nesterov", SGD{.nesterov = true});
  expect_field("nesterov", SGD{.momentum = 0.9, .dampening = 0.1, .nesterov = true});
  expect_field("etas", Rprop{.etas = {{0.5, 1}}});
  expect_field("etas", Rprop{.etas = {{1, 1.2}}});
  expect_field("step_sizes", Rprop{.step_sizes = {{1, 0.5}}});
  expect_field("adjust_lr_fn", Muon{.adjust_lr_fn = "spectral"});
  OptimizerOptions(AdamW{.lr = 0, .weight_decay = 0, .betas = {{0, 0}}, .eps = 0}).validate();
}

// The compiler refuses it where the type is known.
TEST(OptimizerOptions, AnOptionThatTheTypeDoesNotHaveIsRefused) {
  const auto expect_refused = [](const std::string& field, OptimizerOptions options, const OptionValue& value) {
    expect_error<ConfigError>([&] { options.set(field, value); }, {"'" + field + "'", options.type(), "known: lr"});
  };
  expect_refused("momentum", AdamW{}, 0.9);
  expect_refused("betas", SGD{}, std::vector{0.9, 0.99});
  expect_refused("weight_decay", LBFGS{}, 0.1);
}

TEST(OptimizerOptions, ACopyOfOptionsIsItsOwn) {
  const OptimizerOptions first = SGD{.lr = 0.5};
  OptimizerOptions second = first;
  second.set("lr", 0.25);
  EXPECT_EQ(first.as<SGD>().lr, 0.5);
  EXPECT_EQ(second.as<SGD>().lr, 0.25);
  EXPECT_EQ(second.get_if<AdamW>(), nullptr);
}

}  // namespace
}  // namespace duet::testing
