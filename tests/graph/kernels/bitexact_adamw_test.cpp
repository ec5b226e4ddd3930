#include "graph/kernels/bitexact_adamw.h"
#include <cmath>
#include <limits>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>
#include "base/detail/bits.h"
#include "tests/graph/kernels/kernel_cases.h"

// The step of AdamW over all parameters is ATen's, bit by bit.

namespace duet {
namespace {

using at::Tensor;
using testing::Calls;
using testing::Random;
using testing::Threads;

float* floats(const Tensor& tensor) { return static_cast<float*>(tensor.mutable_data_ptr()); }

TEST(BitexactAdamw, HasTheBitsOfATenWithOneThread) {
  for (const PointwiseKernels& kernels : {pointwise_kernels_avx2(), pointwise_kernels_avx512()}) {
    if (kernels.adamw == nullptr) continue;
    const Threads one(1);
    EXPECT_TRUE(adamw_is_bitexact(kernels));
  }
}

void wrong_parameter(const AdamwStep& work) {
  fast_pointwise_kernels().adamw(work);
  if (work.count == 69) work.param[68] = std::nextafter(work.param[68], 1e30F);
}
void keeps_the_gradient(const AdamwStep& work) {
  const float first = work.grad[0];
  fast_pointwise_kernels().adamw(work);
  work.grad[0] = first;
}

TEST(BitexactAdamw, IsRefusedIfOneBitDiffers) {
  const Threads one(1);
  PointwiseKernels kernels = fast_pointwise_kernels();
  if (kernels.adamw == nullptr) GTEST_SKIP() << "no kernel for this CPU";
  for (const auto sabotage : {wrong_parameter, keeps_the_gradient}) {
    kernels.adamw = sabotage;
    EXPECT_FALSE(adamw_is_bitexact(kernels));
  }
}

// param += 1 / (sqrt(exp_avg_sq) / bias_sqrt), where nothing else changes: what multiply-adds make of the division.
TEST(BitexactAdamw, DividesAsTheCpuDoes) {
  Random random;
  SCOPED_TRACE(random.seed);
  constexpr int64_t kCount = 997;
  const Tensor param = at::empty({kCount}), grad = at::empty({kCount}).zero_(), average = at::empty({kCount});
  for (const PointwiseKernels& kernels : {pointwise_kernels_avx2(), pointwise_kernels_avx512()}) {
    for (int round = 0; round < 500 && kernels.adamw != nullptr; ++round) {
      const Tensor squares = testing::floats_of_kind({kCount}, round % testing::kKinds, random).abs_();
      const float bias = std::ldexp(static_cast<float>(random.bits() % (1 << 24) + 1), -24 - round % 3 * 5);
      param.zero_(), average.fill_(1);
      floats(squares)[0] = round % 2 == 0 ? 0.0F : std::numeric_limits<float>::infinity();
      floats(squares)[1] = std::numeric_limits<float>::denorm_min();
      AdamwStep work{floats(param), floats(grad), floats(average), floats(squares), kCount, nullptr};
      work.beta2 = 1, work.bias_sqrt = bias, work.step = 1;
      kernels.adamw(work);
      for (int64_t i = 0; i < kCount; ++i) {
        const float expected = 1 / (std::sqrt(floats(squares)[i]) / bias), given = floats(param)[i];
        ASSERT_TRUE(expected == given || (std::isnan(expected) && std::isnan(given)))
            << floats(squares)[i] << " " << bias;
      }
    }
  }
}

struct Arguments {
  Tensor param = at::empty({3, 5}), grad = at::empty({3, 5});
  bool amsgrad = false, maximize = false;
  int64_t threads = 1;
};

bool is_taken(const Arguments& a) {
  const Threads scope(static_cast<int>(a.threads));
  const std::vector<Tensor> numbers(5, at::full({}, 0.1, at::kDouble)), none;
  const auto list = [](const Tensor& tensor) { return std::vector<Tensor>{tensor}; };
  Calls calls;
  calls.add("duet::fused_adamw_", "",
            {list(a.param),
             list(a.grad),
             list(at::empty_like(a.param)),
             list(at::empty_like(a.param)),
             none,
             list(at::full({}, 1, at::kFloat)),
             numbers,
             a.amsgrad,
             a.maximize,
             {},
             {}});
  return calls.taken(find_bitexact_adamw)[0];
}

TEST(BitexactAdamw, TakesPlainStepsOnly) {
  EXPECT_EQ(is_taken({}), fast_pointwise_kernels().adamw != nullptr);
  EXPECT_FALSE(is_taken({.amsgrad = true}));
  EXPECT_FALSE(is_taken({.maximize = true}));
  EXPECT_FALSE(is_taken({.threads = 2}));
  EXPECT_FALSE(is_taken({.grad = at::empty({5, 3}).t()}));
  EXPECT_FALSE(is_taken({.param = at::empty({3, 5}, at::kDouble), .grad = at::empty({3, 5}, at::kDouble)}));
}

}  // namespace
}  // namespace duet
