#include "graph/kernels/bitexact_gemm.h"
#include <cmath>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include "tests/graph/kernels/kernel_cases.h"
#include "tests/support/number_from.h"

// duet's products give the bits they promise, are refused where they do not, and take an op's place only where they
// may. DUET_FUZZ_GEMMS and DUET_FUZZ_SEED: how many random shapes, and the seed.

namespace duet {
namespace {

using at::Tensor;
using testing::Calls;
using testing::Random;
using testing::Threads;

Tensor matrix(int64_t rows, int64_t columns, bool transposed) {
  return transposed ? torch::empty({columns, rows}).t() : torch::empty({rows, columns});
}

GemmTensors gemm(int64_t m, int64_t n, int64_t k, bool a_transposed, bool b_transposed, char bias = ' ',
                 TrialNumbers numbers = TrialNumbers::kPlain) {
  const auto filled = [&](const Tensor& like, uint64_t seed) { return trial_tensor(like, numbers, seed); };
  GemmTensors t{filled(matrix(m, k, a_transposed), 1),
                filled(matrix(k, n, b_transposed), 2),
                filled(matrix(m, n, false), 3),
                {},
                {}};
  if (bias == 'b') t.before = filled(torch::empty({n}), 4);
  if (bias == 'a') t.after = filled(torch::empty({n}), 5);
  return t;
}

// Whether the kernel gives what ATen gives.
bool is_like_aten(const GemmTensors& t, const GemmOrder& order) {
  GemmTensors ours = t;
  ours.out = torch::empty_like(t.out);
  compute_as_aten(t);
  return gives_the_bits_of(t.out, GemmRunner(cpu_kernels().gemm, ours, order), ours);
}

class BitexactGemm : public ::testing::Test {
 protected:
  void SetUp() override {
    if (kernel == nullptr) GTEST_SKIP() << "this CPU has no kernel of duet's";
  }
  static GemmOrder order_of(const GemmTensors& tensors, GemmKernel of) {
    BitexactKernels kernels;
    return bitexact_gemm_order(tensors, of, kernels);
  }
  const GemmKernel kernel = cpu_kernels().gemm;
  const torch::NoGradGuard no_grad;
  const Threads one{1};
};

// The sum that gemm_kernel.h writes down.
float element(const GemmTensors& t, int64_t i, int64_t j, int64_t k_block) {
  const auto bias = [j](const Tensor& of) {
    return of.defined() ? of.const_data_ptr<float>()[j * of.stride(0)] : 0.0F;
  };
  const float* const a = t.a.const_data_ptr<float>() + i * t.a.stride(0);
  const float* const b = t.b.const_data_ptr<float>() + j * t.b.stride(1);
  const int64_t terms = t.a.size(1), a_step = t.a.stride(1), b_step = t.b.stride(0);
  float sum = bias(t.before);
  for (int64_t k = 0; k < terms; k += k_block) {
    float part = 0;
    for (int64_t l = k; l < std::min(terms, k + k_block); ++l) part = std::fma(a[l * a_step], b[l * b_step], part);
    sum += part;
  }
  return t.after.defined() ? sum + bias(t.after) : sum;
}

TEST_F(BitexactGemm, SumsInTheOrderItStates) {
  using Sizes = std::array<int64_t, 3>;
  const std::vector<Sizes> shapes = {
      {1, 1, 1},    {6, 64, 16},   {7, 65, 17},   {13, 130, 40}, {5, 15, 33},
      {97, 80, 20}, {100, 60, 20}, {256, 70, 20}, {98, 20, 1024}};  // of the last two a is copied, in one layout
  for (const auto& [m, n, k] : shapes) {
    for (int choice = 0; choice < 24; ++choice) {
      const int64_t k_block = choice % 2 == 0 ? k : 12;
      const char bias = " ba"[choice / 2 % 3];
      const int layout = choice / 6;
      const GemmTensors t = gemm(m, n, k, (layout & 1) != 0, (layout & 2) != 0, bias, TrialNumbers::kWide);
      ASSERT_TRUE(can_address(t));
      GemmRunner(kernel, t, {.k_block = k_block}).run(t);
      for (int64_t i = 0; i < m * n; ++i) {
        ASSERT_EQ(t.out.data_ptr<float>()[i], element(t, i / n, i % n, k_block))
            << m << "x" << n << "x" << k << " block " << k_block << " layout " << layout << " bias " << bias;
      }
    }
  }
}

// One element of a tile is one unit in the last place off.
bool slightly_wrong(const Gemm& gemm, const GemmPart& part, float* scratch) {
  const bool numbers = cpu_kernels().gemm(gemm, part, scratch);
  gemm.c[0] = std::nextafter(gemm.c[0], 1e30F);
  return numbers;
}

// Right, but it does not say so.
bool overlooks_nan(const Gemm& gemm, const GemmPart& part, float* scratch) {
  cpu_kernels().gemm(gemm, part, scratch);
  return true;
}

// Wrong on about every second set of numbers.
bool wrong_at_times(const Gemm& gemm, const GemmPart& part, float* scratch) {
  const bool numbers = cpu_kernels().gemm(gemm, part, scratch);
  if (std::fabs(gemm.a[0]) > 1.5F) gemm.c[0] = std::nextafter(gemm.c[0], 1e30F);
  return numbers;
}

TEST_F(BitexactGemm, IsRefusedIfOneBitDiffers) {
  const GemmTensors t = gemm(96, 128, 64, false, false);
  EXPECT_EQ(order_of(t, slightly_wrong).k_block, 0);
  EXPECT_EQ(order_of(t, overlooks_nan).k_block, 0);
}

TEST_F(BitexactGemm, IsComparedOftenEnoughWhereOneGemmIsASingleSum) {
  for (int64_t k = 2; k < 400; k += 7) {
    for (const char bias : {' ', 'b', 'a'}) {
      const GemmTensors t = gemm(1, 1, k, false, true, bias);
      EXPECT_EQ(order_of(t, wrong_at_times).k_block, 0);
      const GemmOrder order = order_of(t, kernel);
      for (int round = 0; order.k_block != 0 && round < 20; ++round) {
        t.a.normal_(), t.b.normal_();
        ASSERT_TRUE(is_like_aten(t, order)) << "k " << k << " bias " << bias;
      }
    }
  }
}

TEST_F(BitexactGemm, IsTriedOutOnExpandedMatrices) {
  GemmTensors t = gemm(96, 128, 64, false, false);
  t.a = torch::ones({}).expand({96, 64});  // the gradient of a sum
  ASSERT_TRUE(can_address(t));
  EXPECT_NO_THROW(order_of(t, kernel));

  GemmTensors large = gemm(600, 600, 64, false, false);  // of which a part is timed
  large.before = torch::ones({600}).expand({600, 600});
  ASSERT_TRUE(can_address(large));
  ::testing::internal::CaptureStderr();
  order_of(large, kernel);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "") << "a trial that throws warns";
}

TEST_F(BitexactGemm, LeavesAloneWhatItCannotAddress) {
  const GemmTensors right = gemm(4, 8, 16, false, false);
  EXPECT_TRUE(can_address(right));
  GemmTensors t = right;
  t.b = torch::empty({16, 16}).slice(1, 0, 16, 2).slice(1, 0, 8);  // neither rows nor columns without gaps
  EXPECT_FALSE(can_address(t));
  t = right, t.out = t.b.slice(0, 0, 4);
  EXPECT_FALSE(can_address(t));
  t = right, t.before = torch::empty({4, 8});
  EXPECT_FALSE(can_address(t));
}

TEST_F(BitexactGemm, TakesTheBiasOnlyIfNothingElseHappens) {
  const GemmTensors t = gemm(96, 128, 64, false, true);
  const Tensor bias = torch::randn({128});
  GemmTensors with_bias = t;
  with_bias.after = bias;
  // Each is an answer of its own, which depends on the time that ours and the BLAS's take, and stays what it is.
  const auto is_chosen = [&](const GemmTensors& tensors) { return order_of(tensors, kernel).k_block != 0; };
  if (!is_chosen(t) || !is_chosen(with_bias)) GTEST_SKIP() << "no bit-exact kernel here";
  const auto taken = [&](const Tensor& target, const Tensor& added, int alpha = 1, std::size_t segment = 0) -> bool {
    Calls calls;
    calls.add("aten::mm", "out", {t.a, t.b}, {t.out});
    calls.add("aten::add_", "Tensor", {target, added, alpha}, {}, segment);
    return calls.taken(find_bitexact_gemms)[1];
  };
  EXPECT_TRUE(taken(t.out.view({2, 48, 128}), bias));
  EXPECT_FALSE(taken(t.out, bias, 2));
  EXPECT_FALSE(taken(t.out, torch::randn({96, 1})));
  EXPECT_FALSE(taken(t.out.view({48, 256}), torch::randn({256})));
  EXPECT_FALSE(taken(torch::empty({96, 128}), bias));
  EXPECT_FALSE(taken(t.out, t.out[0]));
  EXPECT_FALSE(taken(t.out, bias, 1, 1)) << "host code runs between";

  // LibTorch computes both where a result is NaN.
  t.a.data_ptr<float>()[5] = std::nanf("1"), bias.data_ptr<float>()[3] = std::nanf("2");
  Calls calls;
  calls.add("aten::mm", "out", {t.a, t.b}, {t.out});
  calls.add("aten::add_", "Tensor", {t.out, bias, 1});
  const BitexactKernels kernels = calls.kernels(find_bitexact_gemms);
  for (const auto& of_call : kernels.of_call) of_call.run();
  EXPECT_TRUE(same_bits(t.out, torch::mm(t.a, t.b).add_(bias)));
}

TEST_F(BitexactGemm, SaysWhetherAResultIsNan) {
  for (const int threads : {1, 2}) {
    const Threads scope(threads);
    for (const auto& [k, k_block] : std::vector<std::array<int64_t, 2>>{{40, 40}, {40, 12}, {1024, 12}}) {
      for (const char bias : {' ', 'b', 'a'}) {
        const GemmTensors t = gemm(150, 145, k, false, false, bias);
        const GemmRunner runner(kernel, t, {.k_block = k_block});
        EXPECT_TRUE(runner.run(t));
        t.b.abs_();
        for (const Tensor& place : {t.a[0][39], t.a[149][0], t.b[39][144], bias == 'b' ? t.before[144] : t.a[77][20],
                                    bias == 'a' ? t.after[144] : t.b[0][0]}) {
          const Tensor before = place.clone();
          place.fill_(NAN);
          EXPECT_FALSE(runner.run(t));
          place.copy_(before);
        }
        t.a[3][7] = INFINITY;  // times what lies beyond the last column
        EXPECT_TRUE(runner.run(t));
      }
    }
  }
}

class GemmFuzz : public BitexactGemm {
 protected:
  // Mostly small, with those that tiles and threads end at among them.
  int64_t size() {
    switch (random.between(0, 9)) {
      case 0: return random.between(1, 4);
      case 1: return 16 * random.between(1, 16);
      case 2:
      case 3: return random.between(1, 400);
      default: return random.between(1, 80);
    }
  }
  // At some distance from a 64-byte boundary.
  Tensor any_matrix(int64_t rows, int64_t columns) {
    const bool transposed = random.coin();
    const int64_t offset = random.coin() ? 0 : random.between(1, 15);
    const Tensor memory = torch::empty({offset + rows * columns}).narrow(0, offset, rows * columns);
    return transposed ? memory.view({columns, rows}).t() : memory.view({rows, columns});
  }
  GemmTensors any_gemm() {
    const int64_t m = size(), n = size(), k = size();
    GemmTensors t{any_matrix(m, k), any_matrix(k, n), torch::empty({m, n}), {}, {}};
    const int64_t bias = random.between(0, 2);
    if (bias == 1) t.before = torch::empty({n});
    if (bias == 2) t.after = torch::empty({n});
    return t;
  }
  // Proved, whether duet's kernel is fast enough or not.
  GemmOrder proved_order(const GemmTensors& t) const {
    const TrialGuard guard;
    const int64_t k = t.a.size(1);
    for (const int64_t k_block : {k, k / 8 * 4, int64_t{192}, int64_t{256}, int64_t{384}}) {
      if (k_block == 0 || k_block > k) continue;
      const GemmOrder order = likely_order(t, k_block);
      if (order_is_proved(t, kernel, order)) return order;
    }
    return {};
  }
  void expect_atens_bits(const GemmTensors& t, const GemmOrder& order) {
    for (int kind = 0; kind < testing::kKinds; ++kind) {
      for (const Tensor& tensor : {t.a, t.b, t.before, t.after}) {
        if (tensor.defined()) tensor.copy_(testing::floats_of_kind(tensor.sizes(), kind, random));
      }
      ASSERT_TRUE(is_like_aten(t, order))
          << at::get_num_threads() << " threads, kind " << kind << ", " << t.a.sizes() << " by " << t.a.strides()
          << ", " << t.b.sizes() << " by " << t.b.strides() << (t.before.defined() ? ", starts from a bias" : "")
          << (t.after.defined() ? ", adds a bias" : "");
    }
  }
  const int64_t shapes = testing::number_from("DUET_FUZZ_GEMMS", 60);
  Random random{static_cast<uint64_t>(testing::number_from("DUET_FUZZ_SEED", 1))};
};

TEST_F(GemmFuzz, NoBitDiffersWhereTheOrderIsProved) {
  for (int64_t shape = 0; shape < shapes; ++shape) {
    const GemmTensors t = any_gemm();
    for (const int threads : {1, 2, 4}) {
      const Threads scope(threads);
      const GemmOrder order = can_address(t) ? proved_order(t) : GemmOrder();
      if (order.k_block != 0) ASSERT_NO_FATAL_FAILURE(expect_atens_bits(t, order)) << "shape " << shape;
    }
  }
}

TEST_F(GemmFuzz, NoBitDiffersWhereDenormalsAreFlushed) {
  const testing::FlushedDenormals flushed;
  for (int64_t shape = 0; shape < shapes / 4; ++shape) {
    const GemmTensors t = any_gemm();
    if (!can_address(t)) continue;
    const GemmOrder order = proved_order(t);
    if (order.k_block != 0) ASSERT_NO_FATAL_FAILURE(expect_atens_bits(t, order)) << "shape " << shape;
    const Threads several(2);
    EXPECT_EQ(order_of(t, kernel).k_block, 0) << "each thread has a mode of its own";
  }
}

}  // namespace
}  // namespace duet
