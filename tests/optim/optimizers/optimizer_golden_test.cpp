#include <algorithm>
#include <map>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include "base/log.h"
#include "optim/optimizers/detail/optimizer.h"
#include "optim/optimizers/optimizer_kind.h"
#include "tests/optim/optimizers/described_cases.h"
#include "tests/optim/optimizers/optimizer_cases.h"
#include "tests/support/over_tensors.h"
#include "tests/support/sample_state.h"
#include "tests/support/torch_reference.h"

// Every optimizer and its flags against torch.optim, over 160 steps.

namespace duet::testing {
namespace {

struct OptimizerCase {
  std::string name;
  OptimizerOptions options;
  std::map<std::string, double> then;                      // numbers from step kRetunedAt on
  bool exact;                                              // every bit must agree
  std::map<std::string, std::pair<double, double>> moves;  // numbers from the first step to beyond the last
};

constexpr int64_t kTrajectorySteps = 160;
constexpr int64_t kRetunedAt = 80;
const std::vector<int64_t> kCompared = {1, 7, 60, 160};  // after so many steps
// What torch.optim makes of them on this machine (optimizer_reference.py).
const std::string kReferencePath = reference_path("optim/optimizer.safetensors");

const std::vector<OptimizerCase>& optimizer_cases() {
  static const std::vector<OptimizerCase> all = [] {
    std::vector<OptimizerCase> cases;
    for (const auto& one : described_cases(reference_path("optim/optimizer.json"))) {
      cases.push_back({one.at("name"), described_options(one), one.at("then"), one.at("exact"), one.at("moves")});
    }
    return cases;
  }();
  return all;
}

const OptimizerCase& golden(const std::string& name) {
  return *std::find_if(optimizer_cases().begin(), optimizer_cases().end(),
                       [&](const OptimizerCase& one) { return one.name == name; });
}

TEST(OptimizerCases, AreThere) {
  if (optimizer_cases().empty()) GTEST_SKIP() << no_reference(kReferencePath, "make_references.py");
  EXPECT_GT(optimizer_cases().size(), 70U);
}

const StateDict& references() {
  static const StateDict all = torch_reference(kReferencePath);
  return all;
}

class OptimizerTrajectory : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { start(golden_.options); }

  void start(const OptimizerOptions& options) {
    parameters_ = initial_parameters();
    optimizer_ = Optimizer::create(options, parameters_);
    follow_moves();
    lr_ = optimizer_->get(0, "lr");
  }

  void follow_moves() {
    for (const auto& [name, ends] : golden_.moves) {
      optimizer_->set_schedule(name, [from = ends.first, to = ends.second](std::size_t, int64_t applied) {
        return from + (to - from) * (static_cast<double>(applied) / kTrajectorySteps);
      });
    }
  }

  // `reference`: the name of the weights.
  void expect_reference(const std::string& reference) {
    for (int64_t done = 1; done <= kTrajectorySteps; ++done) {
      step(done - 1);
      if (std::count(kCompared.begin(), kCompared.end(), done) == 0) continue;
      const at::Tensor& expected = references().tensor(reference + "." + std::to_string(done));
      if (golden_.exact) {
        expect_bits(values_of(expected), values_of(parameters_), "after " + std::to_string(done));
      } else {
        expect_close(expected, done);
      }
    }
  }

  void step(int64_t step) {
    if (step == kRetunedAt) {
      for (const auto& [name, value] : golden_.then) optimizer_->set(0, name, value);
    }
    golden_step(*optimizer_, parameters_, lr_, step);
  }

  // Relative to the largest weight of each parameter.
  void expect_close(const at::Tensor& expected, int64_t steps) {
    int64_t offset = 0;
    for (const auto& [name, parameter] : parameters_) {
      const at::Tensor part = expected.narrow(0, offset, parameter.numel()).reshape(parameter.sizes());
      const double difference = (part - parameter.detach()).abs().max().item<double>();
      EXPECT_LE(difference, 1e-6 * part.abs().max().item<double>()) << name << " after " << steps << " steps";
      offset += parameter.numel();
    }
    ASSERT_EQ(offset, expected.numel());
  }

  const OptimizerCase& golden_ = golden(GetParam());
  NamedTensors parameters_;
  std::unique_ptr<Optimizer> optimizer_;
  double lr_ = 0;
};

TEST_P(OptimizerTrajectory, IsThatOfTorchOptim) { expect_reference(golden_.name); }

// The steps of fused optimizers on a device where the kernel will not do.
class OverTensors : public OptimizerTrajectory {};

TEST_P(OverTensors, IsThatOfTorchOptimUnfused) {
  start(over_tensors(golden_.options));
  expect_reference(golden_.name + ".over_tensors");
}

// Numbers and state come from the checkpoint, whatever the optimizer was made with.
OptimizerOptions with_other_numbers(OptimizerOptions options) {
  const auto has = [&](const char* name) { return options.fields().find(name) != nullptr; };
  options.set("lr", 7.0);
  if (has("weight_decay")) options.set("weight_decay", 0.5);
  if (has("betas")) options.set("betas", std::vector{0.1, 0.2});
  if (has("eps")) options.set("eps", 0.25);
  if (has("momentum") && numbers_in(options).at("momentum") != 0) options.set("momentum", 0.125);
  return options;
}

// Without the numbers that the optimizer was made with.
StateDict carried(const StateDict& state) {
  StateDict kept;
  for (const auto& [name, tensor] : state.tensors()) kept.set(name, tensor);
  for (const auto& [name, value] : state.values()) {
    if (name.rfind("configured.", 0) != 0) kept.set(name, value);
  }
  return kept;
}

TEST_P(OptimizerTrajectory, GoesOnFromItsState) {
  constexpr int64_t kLength = 40;
  set_log_level(LogLevel::kError);  // it warns, rightly, that the numbers differ
  for (int64_t done = 0; done < kLength; ++done) step(done);
  const std::vector<float> expected = values_of(parameters_);

  for (const int64_t moved : {0, 3, 20}) {
    start(golden_.options);
    for (int64_t done = 0; done < moved; ++done) step(done);
    const NamedTensors copies = initial_parameters();
    auto fresh = Optimizer::create(with_other_numbers(golden_.options), copies);
    if (moved == 3) golden_step(*fresh, copies, 7, 0);  // one that has a state of its own already
    for (std::size_t p = 0; p < copies.size(); ++p) copies[p].second.detach().copy_(parameters_[p].second.detach());
    fresh->load_state_dict(optimizer_->state_dict());
    expect_same_state(carried(fresh->state_dict()), carried(optimizer_->state_dict()));
    parameters_ = copies;
    optimizer_ = std::move(fresh);
    follow_moves();
    for (int64_t done = moved; done < kLength; ++done) step(done);
    expect_bits(expected, values_of(parameters_), "moved at " + std::to_string(moved));
  }
  set_log_level(LogLevel::kInfo);
}

std::vector<std::string> case_names(bool fused_alone) {
  std::vector<std::string> names;
  for (const OptimizerCase& one : optimizer_cases()) {
    if (!fused_alone || find_optimizer_kind(one.options)->fused) names.push_back(one.name);
  }
  return names;
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(OptimizerTrajectory);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(OverTensors);
INSTANTIATE_TEST_SUITE_P(Torch, OptimizerTrajectory, ::testing::ValuesIn(case_names(false)),
                         [](const auto& info) { return info.param; });
INSTANTIATE_TEST_SUITE_P(Torch, OverTensors, ::testing::ValuesIn(case_names(true)),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace duet::testing
