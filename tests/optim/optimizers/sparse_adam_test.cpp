#include <map>
#include <ATen/TensorOperators.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <gtest/gtest.h>
#include "optim/optimizers/detail/optimizer.h"
#include "tests/optim/optimizers/optimizer_cases.h"
#include "tests/support/torch_reference.h"

namespace duet::testing {
namespace {

using at::Tensor;

// As in sparse_adam_reference.py.
constexpr int64_t kRows = 9;
constexpr int64_t kWidth = 5;
constexpr int64_t kSparseSteps = 60;

const std::map<std::string, OptimizerOptions>& sparse_cases() {
  static const std::map<std::string, OptimizerOptions> all = {
      {"plain", SparseAdam{.lr = 0.05}},
      {"default", SparseAdam{}},
      {"everything", SparseAdam{.lr = 0.1, .betas = {{0.7, 0.95}}, .eps = 1e-4, .maximize = true}}};
  return all;
}

Tensor table_at_start() { return formula({kRows, kWidth}, 7, 0, 11, 8).requires_grad_(true); }

Tensor sparse_gradient(int64_t step) {
  const std::vector<int64_t> rows = {step % kRows, step * step % kRows, (step + 4) % kRows, step % kRows};
  const Tensor values = formula({4, kWidth}, 97, step * 61, 251, 128);
  return at::sparse_coo_tensor(at::tensor(rows).unsqueeze(0), values, {kRows, kWidth});
}

void sparse_step(Optimizer& optimizer, const Tensor& table, int64_t step) {
  table.mutable_grad() = sparse_gradient(step);
  step_optimizer(optimizer);
}

TEST(SparseAdam, IsThatOfTorchOptim) {
  const std::string path = reference_path("optim/sparse_adam.safetensors");
  const StateDict references = torch_reference(path);
  if (references.tensors().empty()) GTEST_SKIP() << no_reference(path, "make_references.py");
  for (const auto& [name, options] : sparse_cases()) {
    const Tensor table = table_at_start();
    const auto optimizer = Optimizer::create(options, {{"table", table}});
    for (int64_t done = 1; done <= kSparseSteps; ++done) {
      sparse_step(*optimizer, table, done - 1);
      const std::string key = name + "." + std::to_string(done);
      if (references.has(key)) expect_bits(values_of(references.tensor(key)), values_of(table), key);
    }
    const StateDict state = optimizer->state_dict();
    for (const std::string slot : {"exp_avg", "exp_avg_sq"}) {
      const Tensor& expected = references.tensor(std::string(name).append(".").append(slot));
      expect_bits(values_of(expected), values_of(state.tensor("state.table." + slot)), slot);
    }
    EXPECT_EQ(state.tensor("state.table.step").item<float>(), kSparseSteps);
  }
}

TEST(SparseAdam, StepsNoRowWithoutAGradient) {
  const Tensor table = table_at_start();
  const Tensor before = table.detach().clone();
  const auto optimizer = Optimizer::create(SparseAdam{.lr = 0.1}, {{"table", table}});
  for (int64_t step = 0; step < 2; ++step) {  // Adam would move row 2 again in the second step
    const Tensor row = at::tensor(std::vector<int64_t>{step + 2}).unsqueeze(0);
    table.mutable_grad() = at::sparse_coo_tensor(row, at::ones({1, kWidth}), {kRows, kWidth});
    step_optimizer(*optimizer);
  }
  const Tensor moved = (table.detach() != before).any(1);
  EXPECT_EQ(moved.sum().item<int64_t>(), 2);
  EXPECT_TRUE(moved[2].item<bool>() && moved[3].item<bool>());

  const Tensor none = at::sparse_coo_tensor(at::empty({1, 0}, at::kLong), at::empty({0, kWidth}), {kRows, kWidth});
  const std::vector<float> kept = values_of(table);
  table.mutable_grad() = none;
  step_optimizer(*optimizer);
  expect_bits(kept, values_of(table), "no row at all");
}

TEST(SparseAdam, StepsDenseGradientsBesideSparseOnesByAdam) {
  const Tensor table = table_at_start();
  const Tensor weight = formula({4, 6}, 7, 3, 11, 8).requires_grad_(true);
  const Tensor alone_table = table_at_start();
  const Tensor alone_weight = weight.detach().clone().requires_grad_(true);
  const auto together = Optimizer::create(SparseAdam{.lr = 0.1}, {{"table", table}, {"weight", weight}});
  const auto sparse = Optimizer::create(SparseAdam{.lr = 0.1}, {{"table", alone_table}});
  const auto dense = Optimizer::create(SparseAdam{.lr = 0.1}, {{"weight", alone_weight}});
  for (int64_t step = 0; step < 5; ++step) {
    weight.mutable_grad() = gradient_of(0, step);
    alone_weight.mutable_grad() = gradient_of(0, step);
    sparse_step(*together, table, step);
    sparse_step(*sparse, alone_table, step);
    step_optimizer(*dense);
  }
  expect_bits(values_of(alone_table), values_of(table), "table");
  expect_bits(values_of(alone_weight), values_of(weight), "weight");
}

}  // namespace
}  // namespace duet::testing
