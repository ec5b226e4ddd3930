#include <functional>
#include <map>
#include <memory>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "optim/detail/device_hyper_parameters.h"
#include "optim/optimizers/optimizer_kind.h"
#include "tests/optim/optimizers/optimizer_cases.h"
#include "tests/support/expect_error.h"

// The gradient that a parameter shows is the one that it is stepped with, however it lies in memory.

namespace duet::testing {
namespace {

using at::Tensor;

class GradientLayout : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Type, GradientLayout, ::testing::ValuesIn(types()),
                         [](const auto& info) { return info.param; });

// How a gradient may lie in memory.
const std::map<std::string, std::function<Tensor(const Tensor&)>>& layouts() {
  static const std::map<std::string, std::function<Tensor(const Tensor&)>> all = {
      {"dense", [](const Tensor& gradient) { return gradient.clone(); }},
      {"transposed", [](const Tensor& gradient) { return gradient.t().contiguous().t(); }},
      {"with gaps", [](const Tensor& gradient) { return at::stack({gradient, gradient}, -1).select(-1, 0); }},
      {"column", [](const Tensor& gradient) { return gradient.narrow(1, 0, 1).expand_as(gradient); }},
      {"number", [](const Tensor& gradient) { return gradient[1][2].expand_as(gradient); }},
  };
  return all;
}

// Steps five times with gradients that `lay_out` makes; after each, grad() must show what the step was made with.
std::vector<float> stepped(const OptimizerOptions& options, at::ScalarType dtype,
                           const std::function<Tensor(const Tensor&)>& lay_out, double scale) {
  const Tensor weight = formula({4, 5}, 7, 0, 11, 8).to(dtype).requires_grad_(true);
  const auto optimizer = Optimizer::create(options, {{"weight", weight}});
  for (int64_t step = 0; step < 5; ++step) {
    const Tensor gradient = lay_out(formula({4, 5}, 5, step, 13, 16).to(dtype));
    const std::vector<float> expected = values_of(gradient);
    weight.mutable_grad() = scale == 1 ? gradient : lay_out(gradient * scale);
    optimizer->begin();
    optimizer->step(scale == 1 ? Tensor() : at::full({1}, scale, at::kFloat), {});
    optimizer->end();
    expect_bits(values_of(weight.grad()), expected, "grad()");
  }
  return values_of(weight);
}

TEST_P(GradientLayout, StepsWithTheGradientThatTheParameterShows) {
  const OptimizerOptions options = options_of(GetParam());
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    for (const auto& [name, lay_out] : layouts()) {
      SCOPED_TRACE(std::string(c10::toString(dtype)) + ", " + name);
      const auto dense = [&lay_out](const Tensor& gradient) { return lay_out(gradient).contiguous(); };
      const std::vector<float> expected = stepped(options, dtype, dense, 1);
      expect_bits(stepped(options, dtype, lay_out, 1), expected, "weight");
      expect_bits(stepped(options, dtype, lay_out, 4), expected, "weight, scaled");
    }
  }
}

// A kernel of one's own that mixes up slots and parameters.
TEST(KernelCall, AKernelThatReadsStateThatIsNotThereIsToldSo) {
  const std::map<std::string, std::function<Tensor(const KernelCall&)>> reads = {
      {"slot", [](const KernelCall& call) { return call.state[2][0]; }},
      {"parameter", [](const KernelCall& call) { return call.state[0][3]; }},
      {"swapped", [](const KernelCall& call) { return call.state[call.parameters.size() - 1][1]; }},
      {"negative", [](const KernelCall& call) { return call.state[static_cast<std::size_t>(-1)][0]; }},
  };
  for (const auto& [name, read] : reads) {
    OptimizerKind kind{.name = "Own"};
    kind.slots = [](const OptimizerOptions&) { return std::vector<StateSlot>{{.name = "a"}, {.name = "b"}}; };
    kind.numbers = [](const OptimizerOptions&) { return std::map<std::string, double>{{"lr", 1}}; };
    kind.kernel = [&read](const KernelCall& call, const OptimizerOptions&) { call.parameters[0].add_(read(call)); };
    NamedTensors parameters;
    for (const char* parameter : {"p", "q", "r"}) {
      parameters.emplace_back(parameter, at::ones({2}).requires_grad_(true));
      parameters.back().second.mutable_grad() = at::ones({2});
    }
    const OptimizerOptions options(std::make_shared<const OptimizerKind>(kind));
    const auto optimizer = Optimizer::create(options, parameters);
    SCOPED_TRACE(name);
    expect_error<ConfigError>([&] { step_optimizer(*optimizer); }, {"[KernelCall]", "[slot][parameter]"});
  }
}

}  // namespace
}  // namespace duet::testing
