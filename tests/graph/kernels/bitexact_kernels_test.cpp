#include <cmath>
#include <limits>
#include <tuple>
#include <vector>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones.h>
#include <c10/util/StringUtil.h>
#include <gtest/gtest.h>
#include "graph/kernels/bitexact_gemm.h"
#include "graph/kernels/call_kernels.h"
#include "tests/graph/kernels/call_families.h"
#include "tests/support/number_from.h"

// duet's own kernels give the bits they promise, NaN included, and are refused where they do not. DUET_FUZZ_ROUNDS: by
// how many times more random calls.

namespace duet {
namespace {

using at::Tensor;
using testing::CallFamily;
using testing::Calls;
using testing::Random;
using testing::Threads;

float* floats(const Tensor& tensor) { return static_cast<float*>(tensor.mutable_data_ptr()); }

class OwnKernels : public ::testing::TestWithParam<CallFamily> {
 protected:
  void SetUp() override {
    if (!testing::has_kernels()) GTEST_SKIP() << "no kernel of duet's for this CPU and LibTorch";
  }
  Random random;
};

TEST_P(OwnKernels, GiveTheBitsOfATen) {
  SCOPED_TRACE(random.seed);
  int64_t taken = 0, all = 0;
  for (int64_t round = 0; round < GetParam().rounds * testing::number_from("DUET_FUZZ_ROUNDS", 1); ++round) {
    const Threads threads(round % 10 < 7 ? 1 : round % 10 == 7 ? 4 : 2);
    const Calls calls = GetParam().make(random, static_cast<int>(round % testing::kKinds));
    ASSERT_EQ(calls.difference(taken), "") << "round " << round;
    all += static_cast<int64_t>(calls.calls.size());
  }
  EXPECT_GE(static_cast<double>(taken), GetParam().taken * static_cast<double>(all)) << "of " << all;
}

TEST_P(OwnKernels, FollowATenWhereDenormalsAreFlushed) {
  SCOPED_TRACE(random.seed);
  const testing::FlushedDenormals flushed;
  if (!flushed.possible) GTEST_SKIP() << "this CPU cannot flush denormals";
  const Threads one(1);
  int64_t taken = 0;
  for (int kind = 0; kind < testing::kKinds; ++kind) ASSERT_EQ(GetParam().make(random, kind).difference(taken), "");
}

INSTANTIATE_TEST_SUITE_P(, OwnKernels, ::testing::ValuesIn(testing::call_families()),
                         [](const auto& info) { return info.param.name; });

// Whether ATen draws from MKL here, as it does on Intel's CPUs: then nobody draws its numbers but itself.
bool draws_one_by_one() {
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(1), same = generator.clone();
  at::empty({16}).bernoulli_(0.5, generator);
  for (int i = 0; i < 16; ++i) same.get<at::CPUGeneratorImpl>()->random64();
  return same_bits(generator.get_state(), same.get_state());
}

// Sequences of whole blocks, as models have them.
TEST(BitexactAttention, IsTakenForWholeBlocks) {
  const Threads one(1);
  if (!testing::has_kernels()) GTEST_SKIP() << "no kernel of duet's for this CPU and LibTorch";
  Random random;
  EXPECT_TRUE(testing::attention_calls({2, 8, 64, 64}, true, 0, random).taken(find_bitexact_attention)[0]);
  const std::vector<bool> taken =
      testing::attention_calls({1, 2, 64, 32}, true, 0, random).taken(find_bitexact_attention);
  EXPECT_TRUE(taken[0]);
  if (!taken[1] && !draws_one_by_one()) GTEST_SKIP() << "MKL has other orders on some of Intel's CPUs";
  EXPECT_TRUE(taken[1]);
}

// What a mask hides shows in ATen's result where it is infinite, and where it makes a 0 of a -0.
TEST(BitexactAttention, LeavesToATenWhatAMaskDoesNotHide) {
  Random random;
  int64_t taken = 0;
  const auto expect_same_with = [&](std::size_t op, std::size_t argument, const auto& fill) {
    const Calls calls = testing::attention_calls({1, 1, 16, 16}, true, 0, random);
    fill(calls.calls[op].arguments[argument].toTensor()[0][0]);
    EXPECT_EQ(calls.difference(taken), "") << op << " " << argument;
  };
  const auto last_is_infinite = [](const Tensor& rows) { rows[15][3] = INFINITY; };
  expect_same_with(0, 2, last_is_infinite);
  for (const std::size_t argument : {1, 2, 3, 4}) expect_same_with(1, argument, last_is_infinite);
  for (const float sum : {INFINITY, -INFINITY}) expect_same_with(1, 5, [sum](const Tensor& sums) { sums[15] = sum; });
  const Calls overflow = testing::attention_calls({1, 1, 16, 16}, true, 0, random);
  overflow.calls[1].arguments[0].toTensor()[0][0][0].fill_(1e20F);
  overflow.calls[1].arguments[3].toTensor()[0][0][15].fill_(1e20F);
  EXPECT_EQ(overflow.difference(taken), "");

  const Calls zero = testing::attention_calls({1, 1, 16, 16}, true, 0, random);
  zero.calls[0].arguments[0].toTensor().fill_(1);
  zero.calls[0].arguments[1].toTensor().fill_(0)[0][0][0] = -5.75F;  // later rows give it a weight of 1e-10
  const Tensor v = zero.calls[0].arguments[2].toTensor().fill_(1)[0][0];
  v.narrow(0, 0, 11).fill_(-0.0F)[0] = -1e-40F;
  EXPECT_EQ(zero.difference(taken), "");
}

// Wherever BLAS multiplies by the scale, a power of two gives the same bits of plain numbers, and another about ATen's.
TEST(BitexactAttention, MultipliesByTheScaleBeforeAndAfter) {
  const auto kernel = cpu_kernels().softmax.attention_backward;
  if (kernel == nullptr || blas_sgemm() == nullptr) GTEST_SKIP() << "no kernel of duet's for this CPU";
  Random random;
  SCOPED_TRACE(random.seed);
  for (const auto& [length, width, causal] : std::vector<std::tuple<int64_t, int64_t, bool>>{{33, 16, true},
                                                                                             {33, 32, true},
                                                                                             {64, 64, false},
                                                                                             {65, 16, false},
                                                                                             {97, 64, true},
                                                                                             {128, 16, true},
                                                                                             {100, 32, true}}) {
    OpCall call = testing::attention_calls({1, 2, length, width}, causal, 0, random).calls[1];
    call.run_as_aten();
    const auto heads = [](const Tensor& of) { return Heads<float>{floats(of), 0, of.stride(1), of.stride(2)}; };
    const auto given = [&](std::size_t i) {
      const Heads<float> all = heads(call.arguments[i].toTensor());
      return Heads<const float>{all.data, 0, all.head, all.row};
    };
    std::vector<std::vector<Tensor>> grads;
    for (const int variant : {0, 1, 2, 3, 4}) {  // the last one with MKL's order on AMD's CPUs
      std::vector<Tensor>& made = grads.emplace_back();
      for (const Tensor& grad : call.results) made.push_back(at::empty_like(grad));
      Attention shape{2, length, width, causal, 1 / std::sqrt(static_cast<float>(width)), blas_sgemm()};
      shape.scales_scores = variant % 2 == 1, shape.scales_gradients = variant / 2 == 1;
      if (variant == 4) shape.blas = nullptr;
      shape.q = given(1), shape.k = given(2), shape.v = given(3);
      ASSERT_TRUE(
          kernel({shape, given(4), given(5), given(0), heads(made[0]), heads(made[1]), heads(made[2])}, {0, 2}));
      for (std::size_t i = 0; i < made.size(); ++i) {
        SCOPED_TRACE(c10::str("gradient ", i, " of length ", length, ", variant ", variant));
        const bool is_alike = variant == 4 ? draws_one_by_one() : width != 32;
        if (is_alike) EXPECT_TRUE(same_bits(made[i], grads[0][i]));
        const Tensor& aten = call.results[i];
        EXPECT_TRUE(at::allclose(made[i], aten, 0, 1e-5 * aten.abs().max().item<double>()));
      }
    }
  }
}

// param += 1 / (sqrt(exp_avg_sq) / bias_sqrt), where nothing else changes: what multiply-adds make of the division.
TEST(BitexactAdamw, DividesAsTheCpuDoes) {
  if (!testing::has_kernels()) GTEST_SKIP() << "no kernel of duet's for this CPU";
  Random random;
  SCOPED_TRACE(random.seed);
  constexpr int64_t kCount = 997;
  const Tensor param = at::empty({kCount}), grad = at::empty({kCount}).zero_(), average = at::empty({kCount});
  for (int round = 0; round < 500; ++round) {
    const Tensor squares = testing::floats_of_kind({kCount}, round % testing::kKinds, random).abs_();
    const float bias = std::ldexp(static_cast<float>(random.bits() % (1 << 24) + 1), -24 - round % 3 * 5);
    param.zero_(), average.fill_(1);
    floats(squares)[0] = round % 2 == 0 ? 0.0F : std::numeric_limits<float>::infinity();
    floats(squares)[1] = std::numeric_limits<float>::denorm_min();
    AdamwStep work{floats(param), floats(grad), floats(average), floats(squares), kCount, nullptr};
    work.beta2 = 1, work.bias_sqrt = bias, work.step = 1;
    cpu_kernels().pointwise.adamw(work);
    for (int64_t i = 0; i < kCount; ++i) {
      const float expected = 1 / (std::sqrt(floats(squares)[i]) / bias), given = floats(param)[i];
      ASSERT_TRUE(expected == given || (std::isnan(expected) && std::isnan(given)))
          << floats(squares)[i] << " " << bias;
    }
  }
}

void up(float& value) { value = std::nextafter(value, 1e30F); }

// Kernels that are right but for what one might easily get wrong.
class BitexactTrials : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!testing::has_kernels()) GTEST_SKIP() << "no kernel of duet's for this CPU";
  }
  static inline const CpuKernels& right = cpu_kernels();
  const Threads one{1};
};

TEST_F(BitexactTrials, RefuseAGeluOrMaxPoolIfOneBitDiffers) {
  EXPECT_TRUE(gelu_is_bitexact(right.gelu_tanh, "tanh"));
  EXPECT_FALSE(gelu_is_bitexact(right.gelu_tanh, "none"));
  EXPECT_FALSE(gelu_is_bitexact({}, "none"));
  EXPECT_FALSE(gelu_is_bitexact({[](const float* x, float* tanh, float* y, int64_t count) {
                                   right.gelu_tanh.forward(x, tanh, y, count);
                                   if (count == 97) up(y[96]);
                                 },
                                 right.gelu_tanh.backward},
                                "tanh"));
  EXPECT_FALSE(gelu_is_bitexact({right.gelu_tanh.forward,
                                 [](const GeluBackward& work) {
                                   right.gelu_tanh.backward(work);
                                   if (work.count == 33) up(work.grad_x[32]);
                                 }},
                                "tanh"));

  EXPECT_TRUE(max_pool_is_bitexact(right.max_pool));
  EXPECT_FALSE(max_pool_is_bitexact({}));
  EXPECT_FALSE(max_pool_is_bitexact({right.max_pool.forward, [](const MaxPoolBackward& work, const IndexRange& planes) {
                                       right.max_pool.backward(work, planes);
                                       float& first = work.grad_x[planes.begin * work.pool.height * work.pool.width];
                                       if (first == 0) first = -0.0F;
                                     }}));
}

TEST_F(BitexactTrials, RefuseArithmeticIfOneBitDiffers) {
  const auto with_adamw = [](void (*adamw)(const AdamwStep& work)) {
    PointwiseKernels kernels = right.pointwise;
    kernels.adamw = adamw;
    return adamw_is_bitexact(kernels);
  };
  EXPECT_TRUE(with_adamw(right.pointwise.adamw));
  EXPECT_FALSE(with_adamw([](const AdamwStep& work) {
    right.pointwise.adamw(work);
    if (work.count == 69) up(work.param[68]);
  }));
  EXPECT_FALSE(with_adamw([](const AdamwStep& work) {
    const float first = work.grad[0];
    right.pointwise.adamw(work);
    work.grad[0] = first;
  }));

  const auto with_bernoulli = [](void (*bernoulli)(Bernoulli& work)) {
    PointwiseKernels kernels = right.pointwise;
    kernels.bernoulli = bernoulli;
    return bernoulli_is_bitexact(kernels);
  };
  EXPECT_EQ(with_bernoulli(right.pointwise.bernoulli), draws_one_by_one());
  EXPECT_FALSE(with_bernoulli([](Bernoulli& work) {
    float& last = work.y[work.count - 1];
    right.pointwise.bernoulli(work);
    last = 1 - last;
  }));
  EXPECT_FALSE(with_bernoulli([](Bernoulli& work) {
    right.pointwise.bernoulli(work);
    --work.next, ++work.left;
  }));

  EXPECT_TRUE(rows_are_bitexact(right.pointwise));
  for (PointwiseKernel PointwiseKernels::* kernel : {&PointwiseKernels::add, &PointwiseKernels::copy}) {
    static PointwiseKernel replaced;
    PointwiseKernels wrong = right.pointwise;
    replaced = wrong.*kernel;
    wrong.*kernel = [](const Pointwise& work) {
      replaced(work);
      if (work.count == 133) up(work.y[132]);
    };
    EXPECT_FALSE(rows_are_bitexact(wrong));
  }
}

CallKernel right_product(const OpCall& call) {
  return [a = call.floats(0), b = call.floats(1), y = call.floats(2)]() mutable {
    at::mul_out(y, a, b);
    return true;
  };
}
CallKernel wrong_in_the_last(const OpCall& call) {
  return [run = right_product(call), y = call.floats(2)] {
    run();
    up(floats(y)[y.numel() - 1]);
    return true;
  };
}
CallKernel writes_an_input(const OpCall& call) {
  return [run = right_product(call), a = call.floats(0)] {
    run();
    floats(a)[0] = 3;
    return true;
  };
}
CallKernel leaves_all_to_aten(const OpCall&) {
  return [] { return false; };
}

TEST_F(BitexactTrials, OfACallArePassedOnlyIfEveryBitIsRight) {
  const auto passes = [](CallKernel (*make)(const OpCall&), int64_t rows, int dims_of_rows = 2) {
    Calls calls;
    calls.add("aten::mul", "out", {at::empty({rows, 3}), at::empty({rows, 3})}, {at::empty({rows, 3})});
    return is_bitexact({"aten::mul", "out", "", make, {.dims_of_rows = dims_of_rows}}, calls.calls[0]);
  };
  EXPECT_TRUE(passes(right_product, 20));
  EXPECT_TRUE(passes(right_product, 100000));
  for (const int dims : {0, 2}) {
    EXPECT_FALSE(passes(wrong_in_the_last, 21, dims));
    EXPECT_FALSE(passes(wrong_in_the_last, 100001, dims));
    EXPECT_FALSE(passes(writes_an_input, 22, dims));
    EXPECT_FALSE(passes(leaves_all_to_aten, 23, dims));
  }
  EXPECT_FALSE(passes([](const OpCall&) { return CallKernel(); }, 24));
}

}  // namespace
}  // namespace duet
