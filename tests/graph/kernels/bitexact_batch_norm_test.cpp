#include "graph/kernels/bitexact_batch_norm.h"
#include <cmath>
#include <ATen/ops/full_like.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <ATen/ops/ones.h>
#include <c10/util/StringUtil.h>
#include <gtest/gtest.h>
#include "base/detail/bits.h"
#include "tests/graph/kernels/kernel_cases.h"

// duet's batch norm gives ATen's bits: y, statistics, running ones and gradients.

namespace duet {
namespace {

using at::Tensor;
using testing::Calls;
using testing::floats_of_kind;
using testing::Random;
using testing::Threads;

Tensor like(const Tensor& tensor) { return tensor.defined() ? at::full_like(tensor, 7) : tensor; }
Tensor copy_of(const Tensor& tensor) { return tensor.defined() ? tensor.clone() : tensor; }
bool equal_or_absent(const Tensor& a, const Tensor& b) { return a.defined() ? same_bits(a, b) : !b.defined(); }

// One case: its inputs, and where the results go.
BatchNormTensors norm_case(at::IntArrayRef sizes, int kind, Random& random) {
  const auto channels = sizes.slice(1, 1);
  const auto maybe = [&](bool given) {
    const int other = static_cast<int>(random.between(0, testing::kKinds - 1));
    return given ? floats_of_kind(channels, random.coin() ? 0 : other, random) : Tensor();
  };
  const bool affine = random.between(0, 3) != 0;
  const bool tracks = random.between(0, 3) != 0;
  const Tensor x = floats_of_kind(sizes, kind, random);
  return {x,
          maybe(affine),
          maybe(affine),
          maybe(tracks),
          maybe(tracks),
          like(x),
          at::full(channels, 7, at::kFloat),
          at::full(channels, 7, at::kFloat),
          random.coin() ? 0.1 : 0.37,
          random.between(0, 5) == 0 ? 0 : 1e-5};
}

BatchNormTensors norm_by_aten(BatchNormTensors t) {
  t.running_mean = copy_of(t.running_mean), t.running_variance = copy_of(t.running_variance);
  std::tie(t.y, t.mean, t.inverse_std) = at::native_batch_norm(
      t.x, t.weight, t.bias, t.running_mean, t.running_variance, /*training=*/true, t.momentum, t.epsilon);
  return t;
}

bool forward_alike(const BatchNormKernels& kernels, const BatchNormTensors& t) {
  const BatchNormTensors expected = norm_by_aten(t);
  run_batch_norm_forward(kernels, t);
  return equal_or_absent(expected.y, t.y) && equal_or_absent(expected.mean, t.mean) &&
         equal_or_absent(expected.inverse_std, t.inverse_std) &&
         equal_or_absent(expected.running_mean, t.running_mean) &&
         equal_or_absent(expected.running_variance, t.running_variance);
}

bool backward_alike(const BatchNormKernels& kernels, const BatchNormTensors& t, const Tensor& grad,
                    std::array<bool, 3> mask) {
  const auto [grad_x, grad_weight, grad_bias] =
      at::native_batch_norm_backward(grad, t.x, t.weight, {}, {}, t.mean, t.inverse_std, true, t.epsilon, mask);
  const BatchNormGradTensors ours{grad,          t.x,          t.weight,          t.mean,
                                  t.inverse_std, like(grad_x), like(grad_weight), like(grad_bias)};
  run_batch_norm_backward(kernels, ours);
  return equal_or_absent(grad_x, ours.grad_x) && equal_or_absent(grad_weight, ours.grad_weight) &&
         equal_or_absent(grad_bias, ours.grad_bias);
}

bool norm_is_alike(const BatchNormKernels& kernels, at::IntArrayRef sizes, int kind, Random& random) {
  const BatchNormTensors t = norm_case(sizes, kind, random);
  if (!forward_alike(kernels, t)) return false;
  const int grad_kind = random.coin() ? kind : static_cast<int>(random.between(0, testing::kKinds - 1));
  const bool affine = t.weight.defined();
  const std::array<bool, 3> mask = {random.between(0, 5) != 0, affine && random.coin(), affine && random.coin()};
  return backward_alike(kernels, t, floats_of_kind(sizes, grad_kind, random), mask);
}

// Of AVX2 alone, and with the wider forward where there is one.
std::vector<BatchNormKernels> norm_kernels() {
  if (fast_batch_norm_kernels().forward == nullptr) return {};
  return {image_kernels_avx2().batch_norm, fast_batch_norm_kernels()};
}

TEST(BitexactBatchNorm, GivesTheBitsOfATenOnUsualShapes) {
  if (norm_kernels().empty()) GTEST_SKIP() << "no kernel of duet's for this CPU and LibTorch";
  Random random;
  SCOPED_TRACE(random.seed);
  const std::vector<std::vector<int64_t>> shapes = {{64, 16, 28, 28}, {8, 32, 14, 14}, {4, 64, 7, 7},  {1, 1, 4, 4},
                                                    {2, 3, 16},       {1, 17, 1, 31},  {3, 5, 2, 4, 6}};
  for (const BatchNormKernels& kernels : norm_kernels()) {
    for (const auto& sizes : shapes) {
      for (int kind = 0; kind < testing::kKinds; ++kind) {
        ASSERT_TRUE(norm_is_alike(kernels, sizes, kind, random)) << c10::str(sizes) << " of kind " << kind;
      }
    }
  }
}

TEST(BitexactBatchNorm, GivesTheBitsOfATenOnAnyShape) {
  if (norm_kernels().empty()) GTEST_SKIP() << "no kernel of duet's for this CPU and LibTorch";
  Random random;
  SCOPED_TRACE(random.seed);
  for (const int threads : {1, 2, 4}) {
    const Threads scope(threads);
    for (int round = 0; round < (threads == 1 ? 1000 : 200); ++round) {
      const int64_t width = random.between(1, 50);
      const int64_t height = random.between((kFewestPixels + width - 1) / width, 30);
      const std::vector<int64_t> sizes = {random.between(1, 9), random.between(1, round % 5 == 0 ? 40 : 6), height,
                                          width};
      for (const BatchNormKernels& kernels : norm_kernels()) {
        ASSERT_TRUE(norm_is_alike(kernels, sizes, round % testing::kKinds, random))
            << c10::str(sizes) << ", " << threads << " threads";
      }
    }
  }
}

TEST(BitexactBatchNorm, FollowsATenWhereDenormalsAreFlushed) {
  if (norm_kernels().empty()) GTEST_SKIP() << "no kernel of duet's for this CPU and LibTorch";
  const Threads one(1);
  if (!at::globalContext().setFlushDenormal(true)) GTEST_SKIP() << "this CPU cannot flush denormals";
  Random random;
  SCOPED_TRACE(random.seed);
  bool same = true;
  for (int kind = 0; kind < testing::kKinds; ++kind) {
    same = same && norm_is_alike(fast_batch_norm_kernels(), {3, 4, 5, 7}, kind, random);
  }
  at::globalContext().setFlushDenormal(false);
  EXPECT_TRUE(same);
}

// One mean is a unit in the last place off; a plane is summed in another order.
void wrong_mean(const BatchNormForward& work, const IndexRange& channels) {
  fast_batch_norm_kernels().forward(work, channels);
  float& mean = work.statistics.mean[channels.begin];
  mean = std::nextafter(mean, 1e30F);
}
void sums_backwards(const BatchNormBackward& work, const IndexRange& channels) {
  fast_batch_norm_kernels().backward(work, channels);
  double sum = 0;
  for (int64_t image = work.batch.images; image-- > 0;) {
    const float* grad = plane_of(work.batch, work.grad, image, channels.begin);
    for (int64_t i = work.batch.pixels; i-- > 0;) sum += grad[i];
  }
  if (work.grad_bias != nullptr) work.grad_bias[channels.begin] = static_cast<float>(sum);
}

TEST(BitexactBatchNorm, IsRefusedIfOneBitDiffers) {
  EXPECT_FALSE(batch_norm_is_bitexact({}));
  const BatchNormKernels kernels = fast_batch_norm_kernels();
  if (kernels.forward == nullptr) GTEST_SKIP() << "no kernel of duet's for this CPU and LibTorch";
  EXPECT_TRUE(batch_norm_is_bitexact(kernels));
  EXPECT_FALSE(batch_norm_is_bitexact({wrong_mean, kernels.backward}));
  EXPECT_FALSE(batch_norm_is_bitexact({kernels.forward, sums_backwards}));
}

struct NormCalls {
  Tensor x = at::ones({2, 3, 4, 5}), grad = at::ones({2, 3, 4, 5}), weight = at::ones({3});
  bool training = true;
  c10::IValue running = at::ones({3});

  std::vector<bool> taken() const {
    const auto vector = [] { return at::ones({3}); };
    const auto image = [&] { return at::full_like(x, 0); };
    Calls calls;
    calls.add("aten::native_batch_norm", "", {x, weight, c10::IValue(), running, running, training, 0.1, 1e-5}, 0,
              {image(), vector(), vector()});
    calls.add(
        "aten::native_batch_norm_backward", "",
        {grad, x, weight, running, running, vector(), vector(), training, 1e-5, c10::List<bool>({true, true, false})},
        0, {image(), vector(), Tensor()});
    return calls.taken(find_bitexact_batch_norms);
  }
};

TEST(BatchNormPass, TakesOnlyWhatItKnows) {
  if (fast_batch_norm_kernels().forward == nullptr) GTEST_SKIP() << "no kernel of duet's for this CPU and LibTorch";
  using Bools = std::vector<bool>;
  const auto with = [](auto change) {
    NormCalls calls;
    change(calls);
    return calls.taken();
  };
  EXPECT_EQ(with([](NormCalls&) {}), Bools({true, true}));
  EXPECT_EQ(with([](NormCalls& c) { c.running = c10::IValue(); }), Bools({true, true}));
  EXPECT_EQ(with([](NormCalls& c) { c.training = false; }), Bools({false, false}));
  EXPECT_EQ(with([](NormCalls& c) { c.weight = c.weight.to(at::kDouble); }), Bools({false, false}));
  EXPECT_EQ(with([](NormCalls& c) { c.x = c.x.to(at::kBFloat16); }), Bools({false, false}));
  EXPECT_EQ(with([](NormCalls& c) { c.x = c.x.contiguous(at::MemoryFormat::ChannelsLast); }), Bools({false, false}));
  EXPECT_EQ(with([](NormCalls& c) { c.grad = at::ones({2, 3, 5, 4}).transpose(2, 3); }), Bools({true, false}));
  EXPECT_EQ(with([](NormCalls& c) { c.x = c.grad = at::ones({2, 3, 3, 5}); }), Bools({false, false})) << "small planes";
  EXPECT_EQ(with([](NormCalls& c) { c.x = c.grad = at::ones({20, 3}); }), Bools({false, false})) << "no planes";
}

TEST(BatchNormPass, StepsAsideWhereOnlyTheCallingThreadFlushesDenormals) {
  const auto taken_by_two = [] {
    const Threads two(2);
    return NormCalls().taken();
  };
  const std::vector<bool> usually = taken_by_two();
  if (!at::globalContext().setFlushDenormal(true)) GTEST_SKIP() << "this CPU cannot flush denormals";
  const std::vector<bool> flushing = taken_by_two();
  at::globalContext().setFlushDenormal(false);
  EXPECT_EQ(flushing, std::vector<bool>({false, false}));
  EXPECT_EQ(usually, NormCalls().taken());
}

}  // namespace
}  // namespace duet
