#include <cmath>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include "graph/kernels/bitexact_kernel.h"
#include "tests/graph/kernels/kernel_cases.h"

// duet's own kernels give the bits they promise, are refused where they do not, and take an op's place only where they
// may.

namespace duet {
namespace {

using at::Tensor;
using namespace testing;  // NOLINT: the cases' words

TEST(KernelSettings, TellWhetherDenormalsAreFlushed) {
  const KernelSettings before = kernel_settings();
  if (!at::globalContext().setFlushDenormal(true)) GTEST_SKIP() << "this CPU cannot flush denormals";
  const KernelSettings flushing = kernel_settings();
  at::globalContext().setFlushDenormal(false);
  EXPECT_FALSE(before == flushing);
  EXPECT_TRUE(before == kernel_settings());
}

TEST(BitexactGelu, GivesTheBitsOfATen) {
  const GeluKernels kernels = fast_gelu_kernels();
  if (kernels.forward == nullptr) GTEST_SKIP() << "ATen has neither AVX2 nor AVX-512 here";
  for (const int threads : {1, 2}) {
    const Threads scope(threads);
    EXPECT_TRUE(gelu_kernels_are_bitexact(kernels)) << threads << " threads";
  }
}

void wrong_forward(const float* x, float* tanh, float* y, int64_t count) {
  fast_gelu_kernels().forward(x, tanh, y, count);
  if (count == 97) y[96] = std::nextafter(y[96], 1e30F);
}

void wrong_backward(const float* grad, const float* x, const float* tanh, float* grad_x, int64_t count) {
  fast_gelu_kernels().backward(grad, x, tanh, grad_x, count);
  if (count == 33) grad_x[32] = std::nextafter(grad_x[32], 1e30F);
}

TEST(BitexactGelu, IsRefusedIfOneBitDiffers) {
  const GeluKernels kernels = fast_gelu_kernels();
  EXPECT_FALSE(gelu_kernels_are_bitexact(GeluKernels{}));
  if (kernels.forward == nullptr) GTEST_SKIP() << "this CPU has no kernel of duet's";
  EXPECT_FALSE(gelu_kernels_are_bitexact({wrong_forward, kernels.backward}));
  EXPECT_FALSE(gelu_kernels_are_bitexact({kernels.forward, wrong_backward}));
}

std::vector<bool> gelu_pair(const Tensor& x, const std::string& forward, const std::string& backward,
                            bool write_between, std::size_t backward_segment = 0) {
  Calls calls;
  calls.add("aten::gelu", "out", {x, forward, torch::empty_like(x)});
  if (write_between) calls.add("aten::mul_", "Tensor", {x.view(-1), torch::ones({})});
  calls.add("aten::gelu_backward", "grad_input", {torch::randn_like(x), x, backward, torch::empty_like(x)},
            backward_segment);
  return calls.taken(find_bitexact_gelus);
}

TEST(GeluPass, PairsOnlyWhatMayBePaired) {
  const GeluKernels kernels = fast_gelu_kernels();
  const Tensor x = torch::randn({4, 33});
  const bool available = kernels.forward != nullptr && gelu_kernels_are_bitexact(kernels);
  EXPECT_EQ(gelu_pair(x, "tanh", "tanh", false), std::vector<bool>({available, available}));
  const std::vector<bool> nothing = {false, false};
  EXPECT_EQ(gelu_pair(x, "none", "none", false), nothing);
  EXPECT_EQ(gelu_pair(x, "tanh", "none", false), nothing);
  EXPECT_EQ(gelu_pair(x.to(at::kDouble), "tanh", "tanh", false), nothing);
  EXPECT_EQ(gelu_pair(x.to(at::kBFloat16), "tanh", "tanh", false), nothing);
  EXPECT_EQ(gelu_pair(torch::randn({33, 4}).t(), "tanh", "tanh", false), nothing);
  EXPECT_EQ(gelu_pair(x, "tanh", "tanh", false, /*backward_segment=*/1), nothing) << "host code runs between";
  EXPECT_EQ(gelu_pair(x, "tanh", "tanh", true), std::vector<bool>({false, false, false})) << "x changes between";
}

}  // namespace
}  // namespace duet
