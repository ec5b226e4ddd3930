#include "graph/kernels/direct_rows.h"
#include <cmath>
#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "base/detail/bits.h"
#include "tests/graph/kernels/kernel_cases.h"

// Rows that are copied or added up at once: ATen's bits and errors, and no other calls are taken.

namespace duet {
namespace {

using at::Tensor;
using testing::Calls;
using testing::Random;

void run(const Calls& calls) {
  const std::function<void()> kernel = make_rows_kernel(calls.calls[0], fast_pointwise_kernels().add);
  ASSERT_TRUE(kernel);
  kernel();
}

TEST(DirectRows, HaveTheBitsOfATen) {
  if (fast_pointwise_kernels().add == nullptr) GTEST_SKIP() << "no kernel for this CPU";
  Random random;
  SCOPED_TRACE(random.seed);
  for (int round = 0; round < 100; ++round) {
    const testing::Threads threads(1 + round % 2);
    const int64_t table_rows = random.between(1, 9), width = random.between(1, 70);
    const auto make = [&](at::IntArrayRef sizes) {
      return testing::floats_of_kind(sizes, round % testing::kKinds, random);
    };
    const Tensor table = make({table_rows, width}), indices = at::randint(table_rows, {3, 5}, at::kLong);
    const Tensor rows = make({3, 5, width}), sums = make({table_rows, width}), whole = make({3, 10, width});
    const int64_t padding = random.between(-1, table_rows - 1);
    Calls forward, backward, cat;
    forward.add("aten::embedding", "", {table, indices, padding, false, false}, 0, {rows.clone()});
    run(forward);
    EXPECT_TRUE(same_bits(at::embedding(table, indices), forward.calls[0].results[0]));
    backward.add("aten::embedding_dense_backward", "", {rows, indices, table_rows, padding, false}, 0, {sums});
    run(backward);
    EXPECT_TRUE(same_bits(at::embedding_dense_backward(rows, indices, table_rows, padding, false), sums));
    cat.add("aten::cat", "out", {std::vector<Tensor>{rows, rows}, -2, whole});
    run(cat);
    EXPECT_TRUE(same_bits(at::cat({rows, rows}, 1), whole));
  }
}

TEST(DirectRows, AreRefusedIfASumDiffers) {
  const auto wrong = [](const Pointwise& work) {
    fast_pointwise_kernels().add(work);
    if (work.count == 133) work.y[132] = std::nextafter(work.y[132], 1e30F);
  };
  EXPECT_FALSE(rows_are_bitexact(wrong));
  EXPECT_FALSE(rows_are_bitexact(nullptr));
  EXPECT_EQ(rows_are_bitexact(fast_pointwise_kernels().add), fast_pointwise_kernels().add != nullptr);
}

TEST(DirectRows, SayAsATenDoesThatAnIndexIsOutOfRange) {
  const Tensor indices = at::full({2}, 4, at::kLong);
  Calls calls;
  calls.add("aten::embedding", "", {at::empty({4, 3}), indices, -1, false, false}, 0, {at::empty({2, 3})});
  const std::function<void()> kernel = make_rows_kernel(calls.calls[0], nullptr);
  ASSERT_TRUE(kernel);
  EXPECT_THROW(kernel(), c10::IndexError);
}

TEST(DirectRows, OthersStayWithATen) {
  const Tensor table = at::empty({4, 8}), rows = at::empty({5, 8}), indices = at::full({5}, 1, at::kLong);
  const auto list = [](const Tensor& a, const Tensor& b) { return std::vector<Tensor>{a, b}; };
  Calls calls;
  calls.add("aten::embedding", "", {at::empty({8, 4}).t(), indices, -1, false, false}, 0, {rows});  // gaps
  calls.add("aten::embedding", "", {table, indices.to(at::kInt), -1, false, false}, 0, {rows});
  calls.add("aten::embedding", "", {table.to(at::kDouble), indices, -1, false, false}, 0, {rows.to(at::kDouble)});
  calls.add("aten::embedding_dense_backward", "", {rows, indices, 4, -1, true}, 0, {table});  // by frequency
  calls.add("aten::embedding_dense_backward", "", {at::empty({8, 5}).t(), indices, 4, -1, false}, 0, {table});
  calls.add("aten::cat", "out", {list(rows, at::empty({8, 5}).t()), 0, at::empty({10, 8})});
  calls.add("aten::cat", "out", {list(rows, at::empty({0})), 0, at::empty({5, 8})});
  calls.add("aten::cat", "out", {list(rows, rows), 0, at::empty({8, 10}).t()});
  for (const bool taken : calls.taken(find_direct_rows)) EXPECT_FALSE(taken);
}

}  // namespace
}  // namespace duet
