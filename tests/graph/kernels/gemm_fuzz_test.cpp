#include <cstdlib>
#include <iostream>
#include <map>
#include <string>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include "base/detail/bits.h"
#include "graph/kernels/bitexact_gemm.h"
#include "graph/kernels/gemm_proof.h"
#include "tests/graph/kernels/kernel_cases.h"

// Products of random shapes whose order is proved have LibTorch's bits on numbers of all kinds. DUET_FUZZ_GEMMS and
// DUET_FUZZ_SEED: how many shapes, and the seed.

namespace duet {
namespace {

using at::Tensor;
using testing::Random;
using testing::Threads;

int64_t number_or(const char* variable, int64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::atoll(text);
}

// Mostly small ones, with those that tiles and threads end at among them.
int64_t random_size(Random& random) {
  switch (random.between(0, 9)) {
    case 0: return random.between(1, 4);
    case 1: return 16 * random.between(1, 16);
    case 2:
    case 3: return random.between(1, 400);
    default: return random.between(1, 80);
  }
}

// A matrix at some distance from a 64-byte boundary.
Tensor random_matrix(int64_t rows, int64_t columns, Random& random) {
  const bool transposed = random.coin();
  const int64_t offset = random.coin() ? 0 : random.between(1, 15);
  const Tensor memory = torch::empty({offset + rows * columns}).narrow(0, offset, rows * columns);
  return transposed ? memory.view({columns, rows}).t() : memory.view({rows, columns});
}

GemmTensors random_gemm(Random& random) {
  const int64_t m = random_size(random), n = random_size(random), k = random_size(random);
  GemmTensors t{random_matrix(m, k, random), random_matrix(k, n, random), torch::empty({m, n}), {}, {}};
  const int64_t bias = random.between(0, 2);
  if (bias == 1) t.before = torch::empty({n});
  if (bias == 2) t.after = torch::empty({n});
  return t;
}

std::string text_of(const GemmTensors& t) {
  return c10::str(t.a.sizes(), " by ", t.a.strides(), ", ", t.b.sizes(), " by ", t.b.strides(),
                  t.before.defined() ? ", starts from a bias" : "", t.after.defined() ? ", adds a bias" : "");
}

// The kind of numbers on which the bits differ; -1: none.
int differing_kind(const GemmTensors& t, const GemmOrder& order, Random& random) {
  const GemmRunner runner(fast_gemm_kernel(), t, order);
  GemmTensors ours = t;
  ours.out = torch::empty_like(t.out);
  for (int kind = 0; kind < testing::kKinds; ++kind) {
    for (const Tensor& tensor : {t.a, t.b, t.before, t.after}) {
      if (tensor.defined()) tensor.copy_(testing::floats_of_kind(tensor.sizes(), kind, random));
    }
    compute_as_aten(t);
    runner.run(ours);
    if (!duet::same_bits(t.out, ours.out)) return kind;
  }
  return -1;
}

TEST(GemmFuzz, NoBitDiffersWhereTheOrderIsProved) {
  if (fast_gemm_kernel() == nullptr) GTEST_SKIP() << "this CPU has no kernel of duet's";
  const torch::NoGradGuard no_grad;
  Random random;
  random.bits.seed(static_cast<uint64_t>(number_or("DUET_FUZZ_SEED", 1)));
  const int64_t shapes = number_or("DUET_FUZZ_GEMMS", 200);
  std::map<int, int64_t> proved;  // by threads
  for (int64_t shape = 0; shape < shapes; ++shape) {
    const GemmTensors t = random_gemm(random);
    if (!can_address(t)) continue;
    for (const int threads : {1, 2, 4}) {
      const Threads scope(threads);
      const GemmOrder order = proved_gemm_order(t, fast_gemm_kernel());
      if (order.k_block == 0) continue;
      ++proved[threads];
      ASSERT_EQ(differing_kind(t, order, random), -1)
          << "shape " << shape << ", " << threads << " threads: " << text_of(t);
    }
  }
  for (const auto& [threads, count] : proved) {
    std::cout << threads << " threads: the order of " << count << " of " << shapes << " shapes is proved\n";
  }
}

struct FlushedDenormals {
  FlushedDenormals() { at::globalContext().setFlushDenormal(true); }
  ~FlushedDenormals() { at::globalContext().setFlushDenormal(false); }
};

TEST(GemmFuzz, NoBitDiffersWhereDenormalsAreFlushed) {
  if (fast_gemm_kernel() == nullptr) GTEST_SKIP() << "this CPU has no kernel of duet's";
  const torch::NoGradGuard no_grad;
  Random random;
  random.bits.seed(static_cast<uint64_t>(number_or("DUET_FUZZ_SEED", 1)));
  const FlushedDenormals flushed;
  int proved = 0;
  for (int64_t shape = 0; shape < number_or("DUET_FUZZ_GEMMS", 200) / 4; ++shape) {
    const GemmTensors t = random_gemm(random);
    if (!can_address(t)) continue;
    const Threads several(2);
    EXPECT_EQ(proved_gemm_order(t, fast_gemm_kernel()).k_block, 0) << "each thread has a mode of its own";
    const Threads one(1);
    const GemmOrder order = proved_gemm_order(t, fast_gemm_kernel());
    if (order.k_block == 0) continue;
    ++proved;
    ASSERT_EQ(differing_kind(t, order, random), -1) << "shape " << shape << ": " << text_of(t);
  }
  RecordProperty("proved", proved);
}

}  // namespace
}  // namespace duet
