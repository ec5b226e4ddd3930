#include "optim/optimizers/detail/optimizer.h"
#include <limits>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "tests/optim/optimizers/optimizer_cases.h"
#include "tests/support/expect_error.h"
#include "tests/support/sample_state.h"

namespace duet::testing {
namespace {

using at::Tensor;

class EveryOptimizer : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Type, EveryOptimizer, ::testing::ValuesIn(types()),
                         [](const auto& info) { return info.param; });

// The state of parameters, without the numbers of the groups.
std::vector<float> state_values(const Optimizer& optimizer) {
  std::vector<float> values;
  const StateDict state = optimizer.state_dict();
  for (const auto& [name, tensor] : state.tensors()) {
    for (const float value : values_of(tensor)) values.push_back(value);
  }
  return values;
}

// Nor is it the first one: the next is.
TEST_P(EveryOptimizer, StepsThatFollowASkippedOneAreAsIfItHadNotBeen) {
  std::vector<float> results[2];
  for (const bool with_skipped : {false, true}) {
    const NamedTensors parameters = initial_parameters();
    const auto optimizer =
        Optimizer::create(options_of(GetParam()), ParamGroups{{"", parameters, {}}}, /*may_skip=*/true);
    const auto step = [&](int64_t number, double found_inf) {
      for (std::size_t p = 0; p < parameters.size(); ++p) parameters[p].second.mutable_grad() = gradient_of(p, number);
      if (found_inf == 1) parameters[0].second.mutable_grad().fill_(std::numeric_limits<float>::infinity());
      optimizer->begin();
      optimizer->step({}, at::full({1}, found_inf, at::kFloat));
      optimizer->end();
    };
    for (int64_t number = 0; number < 4; ++number) {
      if (with_skipped && number != 1) step(number + 9, 1);  // as the first step, too
      step(number, 0);
    }
    EXPECT_EQ(optimizer->applied(), 4);
    results[with_skipped] = values_of(parameters);
    for (const float value : state_values(*optimizer)) results[with_skipped].push_back(value);
  }
  expect_bits(results[0], results[1], GetParam());
}

// A model that is brought into another memory format between two steps.
TEST(Optimizer, AParameterOfAnotherLayoutIsTheSameParameter) {
  for (const char* fused : {"SGD", "Adam", "AdamW", "Adagrad"}) {
    std::vector<float> results[2];
    for (const bool transposed : {false, true}) {
      const Tensor weight = formula({4, 5}, 7, 0, 11, 8).requires_grad_(true);
      const auto optimizer = Optimizer::create(options_of(fused), {{"weight", weight}});
      for (int64_t step = 0; step < 5; ++step) {
        if (transposed && step == 2) weight.set_data(weight.t().contiguous().t());
        weight.mutable_grad() = formula({4, 5}, 5, step, 13, 16);
        step_optimizer(*optimizer);
      }
      results[transposed] = values_of(weight);
      for (const float value : state_values(*optimizer)) results[transposed].push_back(value);
    }
    // The last elements in memory are rounded by other code.
    for (std::size_t i = 0; i < results[0].size(); ++i) EXPECT_NEAR(results[0][i], results[1][i], 1e-6) << fused;
  }
}

TEST_P(EveryOptimizer, AParameterOfAnotherShapeOrDtypeIsRefused) {
  for (const auto& [grown, in_step] : {std::pair(true, false), {true, true}, {false, false}, {false, true}}) {
    const Tensor weight = formula({4, 5}, 7, 0, 11, 8).requires_grad_(true);
    const auto optimizer = Optimizer::create(options_of(GetParam()), {{"weight", weight}});
    weight.mutable_grad() = formula({4, 5}, 5, 0, 13, 16);
    step_optimizer(*optimizer);
    weight.mutable_grad().reset();
    if (in_step) optimizer->begin();
    weight.set_data(grown ? formula({64, 5}, 7, 0, 11, 8) : weight.to(at::kDouble));
    weight.mutable_grad() = at::ones_like(weight).detach();
    expect_error<ConfigError>([&] { in_step ? optimizer->step() : step_optimizer(*optimizer); },
                              {"[Optimizer] parameter 'weight' is ", "expected Float[4, 5]", "before the trainer"});
  }
}

TEST_P(EveryOptimizer, AGradientOfAnotherShapeOrDtypeIsRefused) {
  for (const Tensor& gradient : {at::ones({5}), at::ones({2, 5}), at::ones({4, 5}, at::kDouble)}) {
    const Tensor weight = formula({4, 5}, 7, 0, 11, 8).requires_grad_(true);
    const auto optimizer = Optimizer::create(options_of(GetParam()), {{"weight", weight}});
    weight.mutable_grad() = at::ones({4, 5});
    weight.grad().set_data(gradient);
    expect_error<ConfigError>([&] { step_optimizer(*optimizer); },
                              {"[Optimizer] the gradient of 'weight' is ", "expected Float[4, 5]", "a hook"});
  }
}

TEST_P(EveryOptimizer, NoGradientAtAllChangesNothing) {
  const NamedTensors parameters = initial_parameters();
  const std::vector<float> before = values_of(parameters);
  const auto optimizer = Optimizer::create(options_of(GetParam()), parameters);
  step_optimizer(*optimizer);
  expect_bits(before, values_of(parameters), "nothing");
  EXPECT_EQ(optimizer->state_dict().tensor("state.p0.step").item<float>(), 0);
}

TEST_P(EveryOptimizer, AGradientIsNotChanged) {
  const NamedTensors parameters = initial_parameters();
  const auto optimizer = Optimizer::create(options_of(GetParam(),
                                                      [](OptimizerOptions& options) {
                                                        if (options.fields().find("weight_decay") != nullptr)
                                                          options.set("weight_decay", 0.5);
                                                        options.set("maximize", true);
                                                      }),
                                           parameters);
  for (std::size_t p = 0; p < parameters.size(); ++p) parameters[p].second.mutable_grad() = gradient_of(p, 3);
  step_optimizer(*optimizer);
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    expect_same_tensor(parameters[p].first, gradient_of(p, 3), parameters[p].second.grad());
  }
}

// Dtypes and groups part the kernel calls, not the results.
TEST_P(EveryOptimizer, ParametersOfSeveralDtypesAreSteppedTogether) {
  const auto run = [&](const std::vector<at::ScalarType>& dtypes) {
    NamedTensors parameters;
    for (std::size_t i = 0; i < dtypes.size(); ++i) {
      parameters.emplace_back("p" + std::to_string(i), formula({4, 5}, 7, 0, 11, 8).to(dtypes[i]).requires_grad_(true));
    }
    const auto optimizer = Optimizer::create(options_of(GetParam()), parameters);
    for (int64_t step = 0; step < 3; ++step) {
      for (const auto& item : parameters)
        item.second.mutable_grad() = formula({4, 5}, 5, step, 13, 16).to(item.second.scalar_type());
      step_optimizer(*optimizer);
    }
    return parameters;
  };
  const NamedTensors together = run({at::kFloat, at::kDouble, at::kBFloat16});
  for (std::size_t i = 0; i < together.size(); ++i) {
    const Tensor& found = together[i].second;
    const NamedTensors alone = run({found.scalar_type()});
    expect_same_tensor(c10::toString(found.scalar_type()), alone[0].second, found);
  }
  // Muon's products are bfloat16 in any dtype; a rounding of its input may move a result by some of its steps.
  const double tolerance = GetParam() == "Muon" ? 2e-2 : 1e-6;
  EXPECT_LE((together[0].second.detach() - together[1].second.detach()).abs().max().item<double>(), tolerance);
}

// Every element: ATen's fused SGD leaves most of a bfloat16 parameter as it is.
TEST_P(EveryOptimizer, NarrowParametersAreSteppedAsFloat32UpToTheirRounding) {
  const Tensor start = formula({3, 17}, 7, 0, 11, 8);
  const Tensor gradient = formula({3, 17}, 5, 2, 13, 16);
  const auto stepped = [&](at::ScalarType dtype) {
    const Tensor weight = start.clone().to(dtype).requires_grad_(true);
    const auto optimizer = Optimizer::create(options_of(GetParam()), {{"weight", weight}});
    weight.mutable_grad() = gradient.to(dtype);
    step_optimizer(*optimizer);
    return weight.detach().to(at::kFloat);
  };
  const Tensor expected = stepped(at::kFloat);
  EXPECT_LE(((stepped(at::kBFloat16) - expected).abs() - expected.abs() / 128).max().item<float>(), 0);
  EXPECT_LE(((stepped(at::kHalf) - expected).abs() - expected.abs() / 1024).max().item<float>(), 0);
}

TEST(Optimizer, NumbersAreReadAndWrittenByName) {
  const auto adam = Optimizer::create(AdamW{.lr = 0.5}, initial_parameters());
  EXPECT_EQ(adam->group_count(), 1U);
  EXPECT_EQ(adam->names(), (std::vector<std::string>{"beta1", "beta2", "eps", "lr", "weight_decay"}));
  EXPECT_EQ(adam->get(0, "weight_decay"), 0.01);
  adam->set(0, "lr", 0.1);
  EXPECT_EQ(adam->get(0, "lr"), 0.1);
  expect_error<ConfigError>([&] { adam->get(0, "momentum"); }, {"'momentum'", "beta1", "weight_decay"});
  expect_error<ConfigError>([&] { adam->set(0, "momentum", 1); }, {"'momentum'"});
  expect_error<ConfigError>([&] { adam->set(0, "beta1", 1); }, {"beta1 = 1", "[0, 1)"});
  expect_error<ConfigError>([&] { adam->get(1, "lr"); }, {"group 1"});
}

// Where torch makes the state: at a parameter's first step, with the lr of that step.
TEST(Optimizer, TheFirstRateIsThatOfTheFirstStep) {
  for (const OptimizerOptions& options :
       {OptimizerOptions(ASGD{.lr = 7, .lambd = 0}), OptimizerOptions(Rprop{.lr = 7})}) {
    const Tensor weight = at::zeros({2}).requires_grad_(true);
    const auto optimizer = Optimizer::create(options, {{"weight", weight}});
    optimizer->set(0, "lr", 0.25);
    weight.mutable_grad() = at::ones({2});
    step_optimizer(*optimizer);
    EXPECT_EQ(values_of(weight), std::vector<float>(2, -0.25F)) << options.type();
  }
}

// Without a buffer it could not take effect.
TEST(Optimizer, MomentumCannotComeLater) {
  const auto sgd = Optimizer::create(SGD{}, initial_parameters());
  expect_error<ConfigError>([&] { sgd->set(0, "momentum", 0.5); }, {"momentum = 0.5"});
  const ParamGroups groups = {{"", initial_parameters(), {{"momentum", 0.5}}}};
  expect_error<ConfigError>([&] { Optimizer::create(SGD{}, groups); }, {"momentum = 0.5", "SGD::momentum"});
  const auto rmsprop = Optimizer::create(RMSprop{}, initial_parameters());
  expect_error<ConfigError>([&] { rmsprop->set(0, "momentum", 0.5); }, {"'momentum'"});
}

TEST(Optimizer, MuonStepsMatricesItselfAndTheRestByAdamW) {
  const auto muon = Optimizer::create(Muon{}, initial_parameters());
  const StateDict state = muon->state_dict();
  for (const char* matrix : {"p0", "p3"}) {
    EXPECT_TRUE(state.has(std::string("state.") + matrix + ".momentum_buffer"));
    EXPECT_FALSE(state.has(std::string("state.") + matrix + ".exp_avg"));
  }
  for (const char* other : {"p1", "p2"}) {
    EXPECT_FALSE(state.has(std::string("state.") + other + ".momentum_buffer"));
    EXPECT_TRUE(state.has(std::string("state.") + other + ".exp_avg_sq"));
  }
  expect_error<ConfigError>([] { Optimizer::create(Muon{}, {{"bias", at::ones({3})}}); }, {"[Muon]", "AdamW"});
}

TEST(Optimizer, ParametersItCannotTrainAreNamed) {
  const auto expect_refused = [](const Tensor& tensor, const std::string& part) {
    expect_error<ConfigError>([&] { Optimizer::create({}, {{"good", at::ones({2})}, {"bad", tensor}}); },
                              {"'bad'", part});
  };
  expect_refused(at::ones({2}, at::kLong), "Long");
  expect_refused(at::ones({1}).expand({4}), "strides");
  expect_refused(at::ones({4, 4}).slice(1, 0, 2), "strides");
  expect_error<ConfigError>([] { Optimizer::create({}, NamedTensors{}); }, {"no trainable parameter"});
}

// Their numbers would go to others.
TEST(Optimizer, AStateWhoseGroupsHaveOtherParametersIsRefused) {
  const NamedTensors all = initial_parameters(), first = {all[0]}, others(all.begin() + 1, all.end());
  const auto created = [](const NamedTensors& one, const NamedTensors& two) {
    return Optimizer::create(AdamW{}, ParamGroups{{"", one, {{"lr", 0.1}}}, {"", two, {}}}, /*may_skip=*/false);
  };
  const StateDict state = created(first, others)->state_dict();
  EXPECT_NO_THROW(created(first, others)->load_state_dict(state));
  expect_error<CheckpointError>([&] { created(others, first)->load_state_dict(state); },
                                {"'p1' in parameter group 1", "'p1' in parameter group 0"});
}

// A state that does not fit is refused before anything of it is taken.
TEST_P(EveryOptimizer, AStateThatDoesNotFitChangesNothing) {
  const NamedTensors parameters = initial_parameters();
  const auto optimizer = Optimizer::create(options_of(GetParam()), parameters);
  for (int64_t step = 0; step < 3; ++step) golden_step(*optimizer, parameters, 0.1, step);
  const StateDict good = optimizer->state_dict();

  const auto other = Optimizer::create(options_of(GetParam()), initial_parameters());
  const StateDict before = copy_of(other->state_dict());
  const auto expect_refused = [&](const StateDict& state, const std::string& part) {
    expect_error<CheckpointError>([&] { other->load_state_dict(state); }, {part});
    expect_same_state(before, other->state_dict());
  };
  const auto without = [&](const std::string& left_out) {
    StateDict state;
    for (const auto& [name, tensor] : good.tensors())
      if (name != left_out) state.set(name, tensor);
    for (const auto& [name, value] : good.values())
      if (name != left_out) state.set(name, value);
    return state;
  };
  for (const auto& entry : good.tensors()) {
    expect_refused(without(entry.first), entry.first);
    StateDict changed = copy_of(good);
    changed.set(entry.first, at::zeros({2, 2, 2}));
    expect_refused(changed, entry.first);
    changed.set(entry.first, entry.second.to(at::kDouble));
    expect_refused(changed, entry.first);
  }
  for (const auto& entry : good.values()) {
    if (entry.first.ends_with(".group")) {
      EXPECT_NO_THROW(Optimizer::create(options_of(GetParam()), parameters)->load_state_dict(without(entry.first)));
    } else {
      expect_refused(without(entry.first), entry.first);
    }
  }
  StateDict more = copy_of(good);
  more.set("state.p0.unknown", at::zeros({2}));
  expect_refused(more, "state.p0.unknown");
  const std::string other_type = GetParam() == "SGD" ? "Adam" : "SGD";
  expect_refused(Optimizer::create(OptimizerOptions::of_type(other_type), initial_parameters())->state_dict(),
                 other_type);
}

}  // namespace
}  // namespace duet::testing
