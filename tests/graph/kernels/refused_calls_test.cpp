#include <cfenv>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include "graph/kernels/call_kernels.h"
#include "tests/graph/kernels/call_families.h"

// duet's kernels take an op's place only where they may.

namespace duet {
namespace {

using at::Tensor;
using testing::Calls;
using testing::Random;
using testing::Threads;
using Bools = std::vector<bool>;

Tensor ones(at::IntArrayRef sizes) { return at::ones(sizes); }
Tensor doubles(at::IntArrayRef sizes) { return at::ones(sizes, at::kDouble); }
Tensor longs(at::IntArrayRef sizes) { return at::ones(sizes, at::kLong); }
Tensor turned(int64_t rows, int64_t columns) { return at::ones({columns, rows}).t(); }
std::vector<Tensor> list(const Tensor& a, const Tensor& b) { return {a, b}; }

class RefusedCalls : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!testing::has_kernels()) GTEST_SKIP() << "no kernel of duet's for this CPU and LibTorch";
  }
  static void expect_none(FindKernels& find, const Calls& calls) {
    const Bools taken = calls.taken(find);
    for (std::size_t i = 0; i < taken.size(); ++i) EXPECT_FALSE(taken[i]) << calls.calls[i].op.operator_name() << i;
  }
  Random random;
};

// A trial is made in memory of its own, so it would not see that.
TEST_F(RefusedCalls, WhatChangesTheMemoryItReads) {
  const Tensor a = ones({4, 8});
  Calls sum;
  sum.add("aten::add_", "Tensor", {a, a.select(0, 1), 1});
  sum.add("aten::add_", "Tensor", {a.narrow(1, 0, 7), a.narrow(1, 1, 7), 1});
  sum.add("aten::mul", "out", {a.narrow(0, 0, 1).expand({4, 8}), ones({4, 8})}, {a});
  expect_none(find_direct_pointwise, sum);
  Calls softmax;
  softmax.add("aten::_softmax", "out", {a, -1, false}, {a});
  expect_none(find_bitexact_rows, softmax);
  Calls product;
  product.add("aten::mm", "out", {ones({4, 4}), a}, {a});
  expect_none(find_direct_calls, product);
  Calls attention = testing::attention_calls({1, 1, 16, 16}, true, 0, random);
  EXPECT_TRUE(attention.taken(find_bitexact_attention)[0]);
  attention.calls[0].results[0] = attention.calls[0].arguments[2].toTensor();
  EXPECT_FALSE(attention.taken(find_bitexact_attention)[0]);
  Calls norm;
  const Tensor x = ones({2, 3, 4, 5});
  norm.add("aten::native_batch_norm", "", {x, {}, {}, {}, {}, true, 0.1, 1e-5}, {x, ones({3}), ones({3})});
  expect_none(find_bitexact_batch_norms, norm);
}

TEST_F(RefusedCalls, Embeddings) {
  const Tensor table = ones({4, 8}), rows = ones({5, 8}), indices = longs({5});
  Calls calls;
  calls.add("aten::embedding", "", {turned(4, 8), indices, -1, false, false}, {rows});  // gaps
  calls.add("aten::embedding", "", {table, indices.to(at::kInt), -1, false, false}, {rows});
  calls.add("aten::embedding", "", {doubles({4, 8}), indices, -1, false, false}, {doubles({5, 8})});
  calls.add("aten::embedding_dense_backward", "", {rows, indices, 4, -1, true}, {table});  // by frequency
  calls.add("aten::embedding_dense_backward", "", {turned(5, 8), indices, 4, -1, false}, {table});
  calls.add("aten::cat", "out", {list(rows, turned(5, 8)), 0}, {ones({10, 8})});
  calls.add("aten::cat", "out", {list(rows, rows), 0}, {turned(10, 8)});
  expect_none(find_direct_rows, calls);
}

TEST_F(RefusedCalls, AdamwWithMoreThanAPlainStep) {
  using List = std::vector<Tensor>;
  const List none, numbers(5, at::full({}, 0.1, at::kDouble));
  const Tensor step = at::full({}, 1, at::kFloat);
  const auto taken = [&](const List& params, const List& grads, bool amsgrad = false, bool maximize = false) -> bool {
    const auto like = [&] {
      List list;
      for (const Tensor& param : params) list.push_back(at::full_like(param, 1));
      return list;
    };
    Calls calls;
    calls.add("duet::fused_adamw_", "",
              {params, grads, like(), like(), none, List(params.size(), step), numbers, amsgrad, maximize,
               c10::IValue(), c10::IValue()});
    return calls.taken(find_bitexact_adamw)[0];
  };
  const Tensor plain = ones({3, 5}), flat = ones({30});
  EXPECT_TRUE(taken({plain}, {ones({3, 5})}));
  EXPECT_FALSE(taken({plain}, {ones({3, 5})}, /*amsgrad=*/true));
  EXPECT_FALSE(taken({plain}, {ones({3, 5})}, false, /*maximize=*/true));
  EXPECT_FALSE(taken({plain}, {turned(3, 5)}));
  EXPECT_FALSE(taken({doubles({3, 5})}, {doubles({3, 5})}));
  EXPECT_TRUE(taken({flat.narrow(0, 0, 15), flat.narrow(0, 15, 15)}, {ones({15}), ones({15})}));
  EXPECT_FALSE(taken({flat.narrow(0, 0, 16), flat.narrow(0, 15, 15)}, {ones({16}), ones({15})}));
  EXPECT_FALSE(taken({ones({3, 5}), ones({3, 5})}, {plain, plain}));
  std::fesetround(FE_UPWARD);
  EXPECT_FALSE(taken({plain}, {ones({3, 5})}));
  std::fesetround(FE_TONEAREST);
}

TEST_F(RefusedCalls, Dropout) {
  const Tensor y = ones({5, 313});
  Calls calls;
  calls.add("aten::bernoulli_", "float", {y.t(), 0.9, {}});                                       // another order
  calls.add("aten::bernoulli_", "float", {y, 0.9, at::make_generator<at::CPUGeneratorImpl>(1)});  // another generator
  calls.add("aten::bernoulli_", "float", {at::ones({4}, at::kBool), 0.9, {}});
  expect_none(find_bitexact_bernoullis, calls);
  Calls divided;
  divided.add("aten::bernoulli_", "float", {y, 0.9, {}});
  divided.add("aten::div_", "Scalar", {ones({5, 313}), 0.9});  // another's
  EXPECT_FALSE(divided.taken(find_bitexact_bernoullis)[1]);
}

TEST_F(RefusedCalls, GelusThatAreNoPair) {
  const auto taken = [](const Tensor& x, const std::string& forward, const std::string& backward, bool writes = false,
                        std::size_t segment = 0) {
    const auto like = [&] { return at::full_like(x, 1); };
    Calls calls;
    calls.add("aten::gelu", "out", {x, forward}, {like()});
    if (writes) calls.add("aten::mul_", "Tensor", {x.view(-1), ones({})});
    calls.add("aten::gelu_backward", "grad_input", {like(), x, backward}, {like()}, segment);
    return calls.taken(find_bitexact_gelus);
  };
  const Tensor x = ones({4, 33});
  const Bools nothing = {false, false}, forward = {true, false};
  EXPECT_EQ(taken(x, "tanh", "tanh"), Bools({true, true}));
  EXPECT_FALSE(taken(x, "none", "tanh")[1]);
  EXPECT_EQ(taken(x, "tanh", "none"), forward);
  EXPECT_EQ(taken(doubles({4, 33}), "tanh", "tanh"), nothing);
  EXPECT_EQ(taken(turned(4, 33), "tanh", "tanh"), nothing);
  EXPECT_EQ(taken(x, "tanh", "tanh", false, /*segment=*/1), forward) << "host code runs between";
  EXPECT_EQ(taken(x, "tanh", "tanh", true), Bools({true, false, false})) << "x changes between";
}

struct PoolCalls {
  Tensor x = ones({2, 3, 8, 8}), y = ones({2, 3, 4, 4}), grad = ones({2, 3, 4, 4}), indices = longs({2, 3, 4, 4});
  std::vector<int64_t> backward_window = {2, 2}, dilation = {1, 1};
  bool write_between = false;
  std::size_t backward_segment = 0;
};

TEST_F(RefusedCalls, MaxPools) {
  const auto taken = [](const PoolCalls& c) {
    const std::vector<int64_t> two = {2, 2}, padding = {0, 0};
    Calls calls;
    calls.add("aten::max_pool2d_with_indices", "out", {c.x, two, two, padding, c.dilation, false}, {c.y, c.indices});
    if (c.write_between) calls.add("aten::zero_", "", {c.indices.view(-1)});
    calls.add("aten::max_pool2d_with_indices_backward", "grad_input",
              {c.grad, c.x, c.backward_window, two, padding, c.dilation, false, c.indices}, {ones({2, 3, 8, 8})},
              c.backward_segment);
    return calls.taken(find_bitexact_max_pools);
  };
  const Tensor last = ones({2, 3, 8, 8}).contiguous(at::MemoryFormat::ChannelsLast);
  EXPECT_EQ(taken({}), Bools({true, true}));
  EXPECT_EQ(taken({.dilation = {2, 2}}), Bools({false, false}));
  EXPECT_EQ(taken({.x = doubles({2, 3, 8, 8}), .y = doubles({2, 3, 4, 4})}), Bools({false, false}));
  EXPECT_EQ(taken({.x = last}), Bools({false, false}));
  EXPECT_EQ(taken({.grad = ones({2, 3, 4, 4}).transpose(2, 3)}), Bools({true, false}));
  EXPECT_EQ(taken({.backward_window = {1, 2}}), Bools({true, false}));
  EXPECT_EQ(taken({.backward_segment = 1}), Bools({true, false})) << "host code runs between";
  EXPECT_EQ(taken({.write_between = true}), Bools({true, false, false})) << "other indices";
}

TEST_F(RefusedCalls, WhereOnlyTheCallingThreadFlushesDenormals) {
  const Threads two(2);
  const Calls rows = testing::row_calls(8, 16, 0, random);
  EXPECT_TRUE(rows.taken(find_bitexact_rows)[0]);
  const KernelSettings before = kernel_settings();
  const testing::FlushedDenormals flushed;
  if (!flushed.possible) GTEST_SKIP() << "this CPU cannot flush denormals";
  EXPECT_FALSE(before == kernel_settings());
  expect_none(find_bitexact_rows, rows);
  for (FindKernels* find : {find_bitexact_rows, find_bitexact_attention, find_bitexact_batch_norms})
    expect_none(*find, rows);
}

// Where a power of two is multiplied shows in denormal factors alone.
template <std::size_t argument, bool first_half>
CallKernel with_scaled_factor(const OpCall& call) {
  return [call] {
    OpCall scaled = call;
    const double first = first_half ? 0.5 : 2;
    const Tensor factor = call.arguments[argument].toTensor();
    scaled.arguments[argument] =
        trial_tensor(factor, TrialNumbers::kPlain, 0).copy_(factor).mul_(first).mul_(1 / first);
    scaled.run_as_aten();
    return true;
  };
}

TEST_F(RefusedCalls, WhereDenormalFactorsAreRoundedElsewhere) {
  const auto accepts = [call = testing::attention_calls({1, 1, 48, 32}, false, 0, random).calls[1]](auto make) {
    return is_bitexact({"aten::_scaled_dot_product_flash_attention_for_cpu_backward", "", "sabotage", make}, call);
  };
  for (const auto make : {with_scaled_factor<0, true>, with_scaled_factor<1, true>, with_scaled_factor<2, true>}) {
    EXPECT_FALSE(accepts(make));
  }
  EXPECT_TRUE(accepts(with_scaled_factor<1, false>)) << "nothing is rounded";
}

// ATen has the words for it.
TEST_F(RefusedCalls, AnIndexOutOfRangeIsAnError) {
  Calls calls = testing::row_calls(6, 5, 0, random);
  calls.add("aten::embedding", "", {ones({4, 3}), at::full({2}, 4, at::kLong), -1, false, false}, {ones({2, 3})});
  for (const std::size_t loss : {6, 7}) calls.calls[loss].arguments[loss - 5].toTensor()[3] = 5;
  const BitexactKernels losses = calls.kernels(find_bitexact_rows), rows = calls.kernels(find_direct_rows);
  EXPECT_THROW(losses.of_call.at(6).run(), c10::IndexError);
  EXPECT_THROW(losses.of_call.at(7).run(), c10::IndexError);
  EXPECT_THROW(rows.of_call.at(8).run(), c10::IndexError);
}

}  // namespace
}  // namespace duet
