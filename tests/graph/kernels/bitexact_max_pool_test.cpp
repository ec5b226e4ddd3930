#include "graph/kernels/bitexact_max_pool.h"
#include <cmath>
#include <limits>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/max_pool2d_with_indices.h>
#include <ATen/ops/max_pool2d_with_indices_backward.h>
#include <ATen/ops/ones.h>
#include <c10/util/StringUtil.h>
#include <gtest/gtest.h>
#include "base/detail/bits.h"
#include "tests/graph/kernels/kernel_cases.h"

// duet's max pooling gives ATen's bits: values, indices and gradients.

namespace duet {
namespace {

using at::Tensor;
using testing::Calls;
using testing::floats_of_kind;
using testing::Random;
using testing::Threads;

using Pair = std::array<int64_t, 2>;

struct Pooling {
  Pair window, stride, padding;
  bool ceil_mode = false;
};

struct Pooled {
  Tensor y, indices, grad_x;
};

std::string text(const Tensor& x, const Pooling& p) {
  return c10::str(x.sizes(), " window ", p.window[0], "x", p.window[1], " stride ", p.stride[0], "x", p.stride[1],
                  " padding ", p.padding[0], "x", p.padding[1], p.ceil_mode ? " ceil" : "");
}

Pooled pooled_by_aten(const Tensor& x, const Tensor& grad, const Pooling& p) {
  const auto [y, indices] = at::max_pool2d_with_indices(x, p.window, p.stride, p.padding, {1, 1}, p.ceil_mode);
  Tensor grad_x;
  if (grad.defined()) {
    grad_x = at::max_pool2d_with_indices_backward(grad, x, p.window, p.stride, p.padding, {1, 1}, p.ceil_mode, indices);
  }
  return {y, indices, grad_x};
}

Pooled pooled_by_kernels(const MaxPoolKernels& kernels, const Tensor& x, const Tensor& grad, const Pooling& p) {
  const MaxPool pool{x.size(-2),  x.size(-1),  grad.size(-2), grad.size(-1), p.window[0],
                     p.window[1], p.stride[0], p.stride[1],   p.padding[0],  p.padding[1]};
  const Pooled result{at::full_like(grad, 7), at::full_like(grad, -7, at::kLong), at::full_like(x, 7)};
  run_max_pool_forward(kernels, pool, {x, result.y, result.indices});
  run_max_pool_backward(kernels, pool, {result.grad_x, grad, result.indices});
  return result;
}

bool pools_alike(const MaxPoolKernels& kernels, const Tensor& x, const Pooling& p, int grad_kind, Random& random) {
  const Tensor grad = floats_of_kind(pooled_by_aten(x, {}, p).y.sizes(), grad_kind, random);
  const Pooled expected = pooled_by_aten(x, grad, p);
  const Pooled found = pooled_by_kernels(kernels, x, grad, p);
  return same_bits(expected.y, found.y) && same_bits(expected.indices, found.indices) &&
         same_bits(expected.grad_x, found.grad_x);
}

std::vector<MaxPoolKernels> pool_kernels() {
  std::vector<MaxPoolKernels> kernels;
  for (const ImageKernels& some : {image_kernels_avx2(), image_kernels_avx512()}) {
    if (some.max_pool.forward != nullptr) kernels.push_back(some.max_pool);
  }
  return kernels;
}

TEST(BitexactMaxPool, GivesTheBitsOfATenOnUsualWindows) {
  if (pool_kernels().empty()) GTEST_SKIP() << "this CPU has no kernel of duet's";
  Random random;
  SCOPED_TRACE(random.seed);
  const std::vector<Pooling> usual = {{{2, 2}, {2, 2}, {0, 0}},      {{3, 3}, {2, 2}, {1, 1}}, {{3, 3}, {1, 1}, {1, 1}},
                                      {{2, 2}, {1, 1}, {0, 0}},      {{3, 3}, {3, 3}, {0, 0}}, {{1, 1}, {1, 1}, {0, 0}},
                                      {{2, 2}, {2, 2}, {1, 1}, true}};
  const std::vector<Pair> sizes = {{28, 28}, {14, 14}, {7, 7}, {112, 112}, {5, 67}, {3, 3}, {33, 4}, {3, 130}};
  for (const MaxPoolKernels& kernels : pool_kernels()) {
    for (const Pooling& pooling : usual) {
      for (const Pair& size : sizes) {
        for (int kind = 0; kind < testing::kKinds; ++kind) {
          const Tensor x = floats_of_kind({2, 3, size[0], size[1]}, kind, random);
          ASSERT_TRUE(pools_alike(kernels, x, pooling, (kind + 3) % testing::kKinds, random))
              << text(x, pooling) << kind;
        }
      }
    }
  }
}

Pooling any_pooling(Random& random) {
  Pooling p{{random.between(1, 5), random.between(1, 5)}, {random.between(1, 4), random.between(1, 4)}, {}};
  p.padding = {random.between(0, p.window[0] / 2), random.between(0, p.window[1] / 2)};
  p.ceil_mode = random.coin();
  return p;
}

TEST(BitexactMaxPool, GivesTheBitsOfATenOnAnyWindow) {
  if (pool_kernels().empty()) GTEST_SKIP() << "this CPU has no kernel of duet's";
  Random random;
  SCOPED_TRACE(random.seed);
  for (const int threads : {1, 2, 4}) {
    const Threads scope(threads);
    for (int round = 0; round < (threads == 1 ? 1000 : 200); ++round) {
      const Pooling pooling = any_pooling(random);
      const int64_t height = pooling.window[0] + random.between(0, 30);
      const int64_t width = pooling.window[1] + random.between(0, 70);
      const std::vector<int64_t> sizes = {random.between(1, 3), random.between(1, 9), height, width};
      const Tensor x = floats_of_kind(random.coin() ? sizes : std::vector<int64_t>(sizes.begin() + 1, sizes.end()),
                                      round % testing::kKinds, random);
      const int grad_kind = static_cast<int>(random.between(0, testing::kKinds - 1));
      for (const MaxPoolKernels& kernels : pool_kernels()) {
        ASSERT_TRUE(pools_alike(kernels, x, pooling, grad_kind, random))
            << text(x, pooling) << ", " << threads << " threads";
      }
    }
  }
}

TEST(BitexactMaxPool, FindsMinusInfinityAndTheLastNan) {
  if (pool_kernels().empty()) GTEST_SKIP() << "this CPU has no kernel of duet's";
  Random random;
  Tensor x = at::full_like(floats_of_kind({1, 1, 2, 32}, 0, random), -std::numeric_limits<float>::infinity());
  auto* values = static_cast<float*>(x.mutable_data_ptr());
  values[2] = std::nanf("1");
  values[35] = std::nanf("2");
  for (const MaxPoolKernels& kernels : pool_kernels()) {
    const Pooled found = pooled_by_kernels(kernels, x, at::ones({1, 1, 1, 16}), {{2, 2}, {2, 2}, {0, 0}});
    const auto* indices = static_cast<const int64_t*>(found.indices.const_data_ptr());
    EXPECT_EQ(indices[0], 0);
    EXPECT_EQ(indices[1], 35);
    EXPECT_EQ(std::memcmp(found.y.const_data_ptr(), values, sizeof(float)), 0);
    EXPECT_EQ(std::memcmp(static_cast<const float*>(found.y.const_data_ptr()) + 1, values + 35, sizeof(float)), 0);
  }
}

// Right but for what a kernel might easily get wrong.
void takes_the_last_of_equal_ones(const MaxPoolForward& work, const IndexRange& planes) {
  fast_max_pool_kernels().forward(work, planes);
  const MaxPool& pool = work.pool;
  const int64_t out_pixels = pool.out_height * pool.out_width;
  for (int64_t i = planes.begin * out_pixels; i < planes.end * out_pixels; ++i) {
    const float* plane = work.x + i / out_pixels * pool.height * pool.width;
    const int64_t next = work.indices[i] + 1;
    if (next % 2 == 1 && plane[next] == work.y[i]) work.indices[i] = next;
  }
}
void keeps_minus_zero(const MaxPoolBackward& work, const IndexRange& planes) {
  fast_max_pool_kernels().backward(work, planes);
  const int64_t pixels = work.pool.height * work.pool.width;
  for (int64_t i = planes.begin * pixels; i < planes.end * pixels; ++i) {
    if (work.grad_x[i] == 0) work.grad_x[i] = -0.0F;
  }
}

TEST(BitexactMaxPool, IsRefusedIfOneBitDiffers) {
  const MaxPoolKernels kernels = fast_max_pool_kernels();
  EXPECT_FALSE(max_pool_is_bitexact({}));
  if (kernels.forward == nullptr) GTEST_SKIP() << "this CPU has no kernel of duet's";
  EXPECT_TRUE(max_pool_is_bitexact(kernels));
  EXPECT_FALSE(max_pool_is_bitexact({kernels.forward, keeps_minus_zero}));
  // Seen by the comparison of these tests.
  Random random;
  SCOPED_TRACE(random.seed);
  const Tensor ties = floats_of_kind({1, 4, 8, 40}, 5, random);
  EXPECT_TRUE(pools_alike(kernels, ties, {{2, 2}, {2, 2}, {0, 0}}, 0, random));
  EXPECT_FALSE(
      pools_alike({takes_the_last_of_equal_ones, kernels.backward}, ties, {{2, 2}, {2, 2}, {0, 0}}, 0, random));
}

struct PoolCalls {
  Tensor x = at::ones({2, 3, 8, 8}), y = at::ones({2, 3, 4, 4}), grad = at::ones({2, 3, 4, 4});
  Tensor indices = at::empty({2, 3, 4, 4}, at::kLong), grad_x = at::ones({2, 3, 8, 8});
  std::vector<int64_t> window = {2, 2}, backward_window = {2, 2}, dilation = {1, 1};
  bool write_between = false;
  std::size_t backward_segment = 0;

  std::vector<bool> taken() const {
    const std::vector<int64_t> stride = {2, 2}, padding = {0, 0};
    Calls calls;
    calls.add("aten::max_pool2d_with_indices", "out", {x, window, stride, padding, dilation, false, y, indices}, 0,
              {y, indices});
    if (write_between) calls.add("aten::zero_", "", {indices.view(-1)});
    calls.add("aten::max_pool2d_with_indices_backward", "grad_input",
              {grad, x, backward_window, stride, padding, dilation, false, indices, grad_x}, backward_segment,
              {grad_x});
    return calls.taken(find_bitexact_max_pools);
  }
};

TEST(MaxPoolPass, TakesOnlyWhatItKnows) {
  if (fast_max_pool_kernels().forward == nullptr) GTEST_SKIP() << "this CPU has no kernel of duet's";
  using Bools = std::vector<bool>;
  const auto with = [](auto change) {
    PoolCalls calls;
    change(calls);
    return calls.taken();
  };
  EXPECT_EQ(with([](PoolCalls&) {}), Bools({true, true}));
  EXPECT_EQ(with([](PoolCalls& c) { c.dilation = {2, 2}; }), Bools({false, false}));
  EXPECT_EQ(with([](PoolCalls& c) { c.x = c.x.to(at::kDouble), c.y = c.y.to(at::kDouble); }), Bools({false, false}));
  EXPECT_EQ(with([](PoolCalls& c) { c.x = c.x.contiguous(at::MemoryFormat::ChannelsLast); }), Bools({false, false}));
  EXPECT_EQ(with([](PoolCalls& c) { c.grad = c.grad.transpose(2, 3); }), Bools({true, false}));
  EXPECT_EQ(with([](PoolCalls& c) { c.backward_window = {1, 2}; }), Bools({true, false}));
  EXPECT_EQ(with([](PoolCalls& c) { c.backward_segment = 1; }), Bools({true, false})) << "host code runs between";
  EXPECT_EQ(with([](PoolCalls& c) { c.write_between = true; }), Bools({true, false, false})) << "other indices";
}

}  // namespace
}  // namespace duet
