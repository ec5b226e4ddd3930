#include "graph/kernels/bitexact_bernoulli.h"
#include <cmath>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>
#include "base/detail/bits.h"
#include "tests/graph/kernels/kernel_cases.h"

// The numbers of a dropout are ATen's, and so is what the generator gives afterwards.

namespace duet {
namespace {

using at::Tensor;
using testing::Calls;

// Whether ATen draws from MKL here, as it does on Intel's CPUs: then nobody draws its numbers but itself.
bool draws_one_by_one() {
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(1), same = generator.clone();
  at::empty({16}).bernoulli_(0.5, generator);
  for (int i = 0; i < 16; ++i) same.get<at::CPUGeneratorImpl>()->random64();
  return same_bits(generator.get_state(), same.get_state());
}

TEST(BitexactBernoulli, DrawsATensNumbers) {
  for (const PointwiseKernels& kernels : {pointwise_kernels_avx2(), pointwise_kernels_avx512()}) {
    if (kernels.bernoulli != nullptr) EXPECT_EQ(bernoulli_is_bitexact(kernels), draws_one_by_one());
  }
}

void wrong_last(Bernoulli& work) {
  float& last = work.y[work.count - 1];
  fast_pointwise_kernels().bernoulli(work);
  last = 1 - last;
}
void forgets_a_word(Bernoulli& work) {
  fast_pointwise_kernels().bernoulli(work);
  --work.next;
  ++work.left;
}

TEST(BitexactBernoulli, IsRefusedIfANumberOrTheGeneratorDiffers) {
  PointwiseKernels kernels = fast_pointwise_kernels();
  if (kernels.bernoulli == nullptr) GTEST_SKIP() << "no kernel for this CPU";
  kernels.bernoulli = wrong_last;
  EXPECT_FALSE(bernoulli_is_bitexact(kernels));
  kernels.bernoulli = forgets_a_word;
  EXPECT_FALSE(bernoulli_is_bitexact(kernels));
}

TEST(BitexactBernoulli, TakesTheDivisionAlongAndNothingElse) {
  const bool available = fast_pointwise_kernels().bernoulli != nullptr && draws_one_by_one();
  const Tensor y = at::empty({5, 313});
  Calls calls;
  calls.add("aten::bernoulli_", "float", {y, 0.9, {}});
  calls.add("aten::div_", "Scalar", {y, 0.9});
  calls.add("aten::bernoulli_", "float", {y, 0.9, {}});
  calls.add("aten::div_", "Scalar", {at::empty({5, 313}), 0.9});                                  // another's
  calls.add("aten::bernoulli_", "float", {y.t(), 0.9, {}});                                       // another order
  calls.add("aten::bernoulli_", "float", {y, 0.9, at::make_generator<at::CPUGeneratorImpl>(1)});  // another generator
  calls.add("aten::bernoulli_", "float", {at::empty({4}, at::kBool), 0.9, {}});
  const std::vector<bool> expected = {available, available, available, false, false, false, false};
  EXPECT_EQ(calls.taken(find_bitexact_bernoullis), expected);
}

TEST(BitexactBernoulli, DividesAsATenDoes) {
  const bool available = fast_pointwise_kernels().bernoulli != nullptr && draws_one_by_one();
  if (!available) GTEST_SKIP() << "ATen's own kernel runs";
  for (const double p : {0.0, 0.3, 0.9, 1.0}) {
    const Tensor expected = at::empty({1000}), given = at::empty({1000});
    at::Generator theirs = at::make_generator<at::CPUGeneratorImpl>(5), ours = theirs.clone();
    expected.bernoulli_(p, theirs).div_(p);
    run_bernoulli(fast_pointwise_kernels(), {given, p, static_cast<float>(p)}, *ours.get<at::CPUGeneratorImpl>());
    EXPECT_TRUE(same_bits(expected, given)) << p;
  }
}

}  // namespace
}  // namespace duet
