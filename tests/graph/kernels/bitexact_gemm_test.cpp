#include "graph/kernels/bitexact_gemm.h"
#include <cmath>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include "core/task.h"
#include "graph/kernels/bitexact_kernel.h"
#include "graph/kernels/trial_data.h"
#include "tests/graph/kernels/kernel_cases.h"
#include "tests/support/trainer_runs.h"

// duet's products give the bits they promise, are refused where they do not, and take an op's place only where they
// may.

namespace duet {
namespace {

using at::Tensor;
using namespace testing;  // NOLINT: the cases' words

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

// The sum that fast_kernels.h writes down.
float element(const GemmTensors& t, int64_t i, int64_t j, int64_t k_block) {
  const auto at = [](const Tensor& x, std::initializer_list<int64_t> index) {
    int64_t offset = 0;
    int64_t d = 0;
    for (const int64_t position : index) offset += position * x.stride(d++);
    return x.data_ptr<float>()[offset];
  };
  const int64_t terms = t.a.size(1);
  float sum = t.before.defined() ? at(t.before, {j}) : 0.0F;
  for (int64_t k = 0; k < terms; k += k_block) {
    float part = 0;
    for (int64_t l = k; l < std::min(terms, k + k_block); ++l) part = std::fma(at(t.a, {i, l}), at(t.b, {l, j}), part);
    sum += part;
  }
  return t.after.defined() ? sum + at(t.after, {j}) : sum;
}

struct InstructionSet {
  const char* name;
  GemmKernel (*kernel)();
};
void PrintTo(const InstructionSet& set, std::ostream* out) { *out << set.name; }

struct GemmKernels : ::testing::TestWithParam<InstructionSet> {
  const GemmKernel kernel = GetParam().kernel();
  void SetUp() override {
    if (kernel == nullptr) GTEST_SKIP() << "this CPU has no kernel of duet's";
  }
};
INSTANTIATE_TEST_SUITE_P(, GemmKernels,
                         ::testing::Values(InstructionSet{"Avx512", gemm_kernel_avx512},
                                           InstructionSet{"Avx2", gemm_kernel_avx2}),
                         [](const auto& info) { return info.param.name; });

TEST_P(GemmKernels, SumInTheOrderTheyState) {
  for (const auto& [m, n, k] : std::vector<std::array<int64_t, 3>>{
           {1, 1, 1}, {6, 64, 16}, {7, 65, 17}, {13, 130, 40}, {5, 15, 33}, {97, 80, 20}}) {
    for (const int64_t k_block : {k, int64_t{12}}) {
      for (const char bias : {' ', 'b', 'a'}) {
        for (const int layout : {0, 1, 2, 3}) {
          const GemmTensors t = gemm(m, n, k, (layout & 1) != 0, (layout & 2) != 0, bias, TrialNumbers::kWide);
          ASSERT_TRUE(can_address(t));
          GemmRunner(kernel, t, {.k_block = k_block}).run(t);
          for (int64_t i = 0; i < m; ++i) {
            for (int64_t j = 0; j < n; ++j) {
              ASSERT_EQ(t.out[i][j].item<float>(), element(t, i, j, k_block))
                  << m << "x" << n << "x" << k << " block " << k_block << " layout " << layout << " bias " << bias;
            }
          }
        }
      }
    }
  }
}

TEST_P(GemmKernels, GiveTheSameBitsOnSeveralThreads) {
  for (const auto& [m, n] : std::vector<std::array<int64_t, 2>>{{100, 256}, {257, 65}}) {
    const GemmTensors t = gemm(m, n, 300, false, true, 'a');
    const auto result_with = [&](int threads) {
      const Threads scope(threads);
      t.out.fill_(-1);
      GemmRunner(kernel, t, {.k_block = 128}).run(t);
      return t.out.clone();
    };
    const Tensor alone = result_with(1);
    EXPECT_TRUE(same_bits(alone, result_with(2)));
    EXPECT_TRUE(same_bits(alone, result_with(5)));
  }
}

GemmOrder order_of(const GemmTensors& tensors, GemmKernel kernel) {
  BitexactKernels kernels;
  return bitexact_gemm_order(tensors, kernel, kernels);
}

TEST_P(GemmKernels, AreChosenOnlyWithTheBitsOfTheBlas) {
  const Threads one(1);
  int chosen = 0;
  for (const int64_t k : {16, 64, 190, 256, 384, 500}) {
    for (const char bias : {' ', 'b', 'a'}) {
      const GemmTensors t = gemm(96, 128, k, false, true, bias);
      const GemmOrder order = order_of(t, kernel);
      if (order.k_block == 0) continue;  // another BLAS may sum up in another way
      ++chosen;
      GemmRunner(kernel, t, order).run(t);
      Tensor expected = bias == 'b' ? torch::addmm(t.before, t.a, t.b) : torch::mm(t.a, t.b);
      if (bias == 'a') expected = expected + t.after;
      EXPECT_TRUE(same_bits(t.out, expected)) << "k " << k << " bias " << bias;
    }
  }
  RecordProperty("chosen", chosen);
}

TEST(BitexactGemm, IsOfTheInstructionsThatATenComputesWith) {
  const std::string atens = at::get_cpu_capability();
  EXPECT_EQ(fast_gemm_kernel(), atens == "AVX512" ? gemm_kernel_avx512()
                                : atens == "AVX2" ? gemm_kernel_avx2()
                                                  : nullptr);
}

// One element of a tile is one unit in the last place off.
void slightly_wrong(const Gemm& gemm, const GemmPart& part, float* scratch) {
  fast_gemm_kernel()(gemm, part, scratch);
  gemm.c[0] = std::nextafter(gemm.c[0], 1e30F);
}

// Right but for the sign of NaN.
void gives_another_nan(const Gemm& gemm, const GemmPart& part, float* scratch) {
  fast_gemm_kernel()(gemm, part, scratch);
  for (int64_t i = 0; i < gemm.m * gemm.n; ++i) gemm.c[i] = std::isnan(gemm.c[i]) ? std::nanf("") : gemm.c[i];
}

TEST(BitexactGemm, IsRefusedIfOneBitDiffers) {
  if (fast_gemm_kernel() == nullptr) GTEST_SKIP() << "this CPU has no kernel of duet's";
  const Threads one(1);
  const GemmTensors t = gemm(96, 128, 64, false, false);
  EXPECT_EQ(order_of(t, slightly_wrong).k_block, 0);
  EXPECT_EQ(order_of(t, gives_another_nan).k_block, 0);
}

// Wrong on about every second set of numbers.
void wrong_at_times(const Gemm& gemm, const GemmPart& part, float* scratch) {
  fast_gemm_kernel()(gemm, part, scratch);
  if (std::fabs(gemm.a[0]) > 1.5F) gemm.c[0] = std::nextafter(gemm.c[0], 1e30F);
}

TEST(BitexactGemm, IsComparedOftenEnoughWhereOneGemmIsASingleSum) {
  if (fast_gemm_kernel() == nullptr) GTEST_SKIP() << "this CPU has no kernel of duet's";
  const Threads one(1);
  for (int64_t k = 2; k < 400; k += 7) {
    for (const char bias : {' ', 'b', 'a'}) {
      GemmTensors t = gemm(1, 1, k, false, true, bias);
      EXPECT_EQ(order_of(t, wrong_at_times).k_block, 0);
      const GemmOrder order = order_of(t, fast_gemm_kernel());
      for (int round = 0; order.k_block != 0 && round < 20; ++round) {
        t.a.normal_(), t.b.normal_();
        Tensor expected = bias == 'b' ? torch::addmm(t.before, t.a, t.b) : torch::mm(t.a, t.b);
        if (bias == 'a') expected = expected + t.after;
        GemmRunner(fast_gemm_kernel(), t, order).run(t);
        ASSERT_TRUE(same_bits(t.out, expected)) << "k " << k << " bias " << bias;
      }
    }
  }
}

TEST(BitexactGemm, IsTriedOutOnExpandedMatrices) {
  if (fast_gemm_kernel() == nullptr) GTEST_SKIP() << "this CPU has no kernel of duet's";
  GemmTensors t = gemm(96, 128, 64, false, false);
  t.a = torch::ones({}).expand({96, 64});  // the gradient of a sum
  ASSERT_TRUE(can_address(t));
  EXPECT_NO_THROW(order_of(t, fast_gemm_kernel()));
}

TEST(BitexactGemm, LeavesAloneWhatItCannotAddress) {
  GemmTensors t = gemm(4, 8, 16, false, false);
  EXPECT_TRUE(can_address(t));
  t.b = torch::empty({16, 16}).slice(1, 0, 16, 2).slice(1, 0, 8);  // neither rows nor columns without gaps
  EXPECT_FALSE(can_address(t));
  t = gemm(4, 8, 16, false, false);
  t.out = t.b.slice(0, 0, 4);
  EXPECT_FALSE(can_address(t));
  t = gemm(4, 8, 16, false, false);
  t.before = torch::empty({4, 8});
  EXPECT_FALSE(can_address(t));
}

TEST(GemmPass, TakesTheBiasOnlyIfNothingElseHappens) {
  const Threads one(1);
  const GemmTensors t = gemm(96, 128, 64, false, true);
  const Tensor bias = torch::randn({128});
  GemmTensors with_bias = t;
  with_bias.after = bias;
  // Each is an answer of its own, which depends on the time that ours and the BLAS's take, and stays what it is.
  const auto is_chosen = [](const GemmTensors& tensors) {
    return fast_gemm_kernel() != nullptr && order_of(tensors, fast_gemm_kernel()).k_block != 0;
  };
  if (!is_chosen(t) || !is_chosen(with_bias)) GTEST_SKIP() << "no bit-exact kernel here";
  const auto taken = [&](const Tensor& target, const Tensor& added, const c10::Scalar& alpha,
                         std::size_t segment) -> bool {
    Calls calls;
    calls.add("aten::mm", "out", {t.a, t.b, t.out});
    calls.add("aten::add_", "Tensor", {target, added, alpha}, segment);
    return calls.taken(find_bitexact_gemms)[1];
  };
  EXPECT_TRUE(taken(t.out.view({2, 48, 128}), bias, 1, 0));
  EXPECT_FALSE(taken(t.out, bias, 2, 0));
  EXPECT_FALSE(taken(t.out, torch::randn({96, 1}), 1, 0));
  EXPECT_FALSE(taken(t.out.view({48, 256}), torch::randn({256}), 1, 0));
  EXPECT_FALSE(taken(torch::empty({96, 128}), bias, 1, 0));
  EXPECT_FALSE(taken(t.out, t.out[0], 1, 0));
  EXPECT_FALSE(taken(t.out, bias, 1, 1)) << "host code runs between";
}

// One row: products of k = 1, sums that start at a negative zero, products that all underflow.
TEST(BitexactGemm, GivesTheGradientsOfEagerInASmallNetAtBatch1) {
  const auto gradients_in = [](const std::string& mode, double scale) {
    seed_all(3);
    torch::nn::Sequential net(torch::nn::Linear(64, 32), torch::nn::ReLU(), torch::nn::Linear(32, 4));
    const auto trainer = make_trainer(mode,
                                      make_task(net.ptr(),
                                                [](auto& model, const Batch& batch) {
                                                  const Tensor error = model.forward(batch["x"]) - batch["y"];
                                                  return (error * batch["weight"]).square().sum();
                                                }),
                                      {.optimizer = SGD{.lr = 0.01}});
    std::vector<Tensor> gradients;
    for (int64_t n = 0; n < 40; ++n) {
      const Tensor x = torch::randn({1, 64}) * scale;
      x.masked_fill_(torch::rand({1, 64}) < 0.3, n % 2 == 0 ? 0.0 : -0.0);
      const Tensor weight = (torch::rand({1, 4}) < 0.5).to(at::kFloat);  // the gradient of the others is a zero
      trainer->step(Batch{{"x", x}, {"y", torch::randn({1, 4}) * scale}, {"weight", weight}});
      for (const Tensor& parameter : net->parameters()) gradients.push_back(parameter.grad().clone());
    }
    return gradients;
  };
  for (const double scale : {1.0, 1e-20, 1e-38}) {
    const std::vector<Tensor> eager = gradients_in("eager", scale), graph = gradients_in("graph", scale);
    ASSERT_EQ(eager.size(), graph.size());
    for (std::size_t i = 0; i < eager.size(); ++i) EXPECT_TRUE(same_bits(eager[i], graph[i])) << scale << " " << i;
  }
}

}  // namespace
}  // namespace duet
