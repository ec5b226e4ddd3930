#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <gtest/gtest.h>
#include "base/detail/bits.h"
#include "tests/graph/kernels/kernel_cases.h"

// Small ops without what ATen does before their arithmetic: its bits, and no others are taken.

namespace duet {
namespace {

using at::Tensor;
using testing::Calls;
using testing::Random;

Tensor matrix(int64_t rows, int64_t columns, bool transposed) {
  return transposed ? at::empty({columns, rows}).t() : at::empty({rows, columns});
}

BitexactKernels found_in(const Calls& calls) {
  BitexactKernels kernels;
  kernels.of_call.resize(calls.calls.size());
  find_direct_calls(calls.calls, kernels);
  return kernels;
}

TEST(DirectCalls, SmallGemmsHaveTheBitsOfATen) {
  const testing::Threads one(1);  // several wait for each other in each call where the machine is busy
  Random random;
  SCOPED_TRACE(random.seed);
  int64_t taken = 0;
  for (int round = 0; round < 200; ++round) {
    const int64_t m = random.between(1, 9), n = random.between(1, 70), k = random.between(1, 70);
    const bool biased = random.coin();
    const auto filled = [&](const Tensor& like, uint64_t seed) {
      return trial_tensor(like, kAllTrialNumbers[round % 4], 7 * static_cast<uint64_t>(round) + seed);
    };
    const Tensor a = filled(matrix(m, k, random.coin()), 1), b = filled(matrix(k, n, random.coin()), 2);
    const Tensor bias = filled(at::empty({n}), 3), out = filled(at::empty({m, n}), 4);
    Calls calls;
    if (biased) {
      calls.add("aten::addmm", "out", {bias, a, b, 1, 1, out});
    } else {
      calls.add("aten::mm", "out", {a, b, out});
    }
    const BitexactKernels kernels = found_in(calls);
    if (!kernels.of_call[0].run) continue;
    ++taken;
    kernels.of_call[0].run();
    EXPECT_TRUE(same_bits(out, biased ? at::addmm(bias, a, b) : at::mm(a, b))) << m << "x" << n << "x" << k;
  }
  EXPECT_GT(taken, 100);
}

TEST(DirectCalls, OthersStayWithATen) {
  const Tensor a = at::empty({4, 8}), b = at::empty({8, 6}), out = at::empty({4, 6}), bias = at::empty({6});
  Calls calls;
  calls.add("aten::addmm", "out", {bias, a, b, 2, 1, out});                       // a factor
  calls.add("aten::addmm", "out", {at::empty({4, 6}), a, b, 1, 1, out});          // a matrix to start from
  calls.add("aten::mm", "out", {a, b, at::empty({6, 4}).t()});                    // columns
  calls.add("aten::mm", "out", {at::empty({4, 16}).slice(1, 0, 16, 2), b, out});  // gaps
  calls.add("aten::mm", "out", {at::empty({512, 512}), at::empty({512, 512}), at::empty({512, 512})});  // large
  for (const bool taken : calls.taken(find_direct_calls)) EXPECT_FALSE(taken);
}

}  // namespace
}  // namespace duet
