#include <cmath>
#include <ATen/ops/add.h>
#include <ATen/ops/div.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/threshold_backward.h>
#include <gtest/gtest.h>
#include "base/detail/bits.h"
#include "graph/kernels/call_trial.h"
#include "graph/kernels/pointwise_kernels.h"
#include "tests/graph/kernels/kernel_cases.h"

// Arithmetic on each element without what ATen does before it: its bits, and no others are taken.

namespace duet {
namespace {

using at::Tensor;
using testing::Calls;
using testing::Random;

float* floats(const Tensor& tensor) { return static_cast<float*>(tensor.mutable_data_ptr()); }

// Both runs of a call that starts with the same numbers; whether the pass takes it.
bool expect_atens_bits(const char* name, const char* overload, const std::vector<c10::IValue>& arguments,
                       const Tensor& fresh = {}) {
  Calls calls;
  calls.add(name, overload, arguments, 0, {fresh});
  BitexactKernels kernels;
  kernels.of_call.resize(1);
  find_direct_pointwise(calls.calls, kernels);
  if (!kernels.of_call[0].run) return false;
  const TrialGuard guard;
  torch::jit::Stack stack = arguments;
  const bool writes_first = std::string(name).ends_with("_");
  const Tensor first = arguments[0].toTensor(), before = first.clone();
  testing::op(name, overload).redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
  const Tensor expected = stack[0].toTensor().clone();
  if (writes_first) first.copy_(before);
  kernels.of_call[0].run();
  const Tensor& given = fresh.defined() ? fresh : stack[0].toTensor();
  EXPECT_TRUE(same_bits(expected, given)) << name << expected.sizes();
  return true;
}

TEST(DirectPointwise, HasTheBitsOfATen) {
  Random random;
  SCOPED_TRACE(random.seed);
  int64_t taken = 0, kept = 0;
  for (int round = 0; round < 300; ++round) {
    const testing::Threads threads(1 + round % 2);
    const int64_t rows = random.between(1, 70), columns = random.between(1, 150);
    const auto make = [&](at::IntArrayRef sizes) {
      return testing::floats_of_kind(sizes, round % testing::kKinds, random);
    };
    const Tensor a = make({rows, columns}), out = make({rows, columns});
    const Tensor b = random.coin() ? make({columns}) : random.coin() ? make({}) : make({rows, columns});
    const double number = random.coin() ? 1.3 : -0.0;
    const auto count = [&](bool took) { ++(took ? taken : kept); };
    count(expect_atens_bits("aten::add", "out", {a, b, 1, out}));
    count(expect_atens_bits("aten::sub", "out", {a, b, 1, out}));
    count(expect_atens_bits("aten::div", "out", {a, b, out}));
    count(expect_atens_bits("aten::mul", "out", {a, b, out}));  // whose NaN lie as they fall at the end of a row
    count(expect_atens_bits("aten::add_", "Tensor", {a, b, 1}));
    count(expect_atens_bits("aten::mul_", "Scalar", {a, number}));
    count(expect_atens_bits("aten::div_", "Scalar", {a, number}));
    count(expect_atens_bits("aten::add_", "Scalar", {a, 3, 1}));
    count(expect_atens_bits("aten::relu", "", {a}, out));
    count(expect_atens_bits("aten::threshold_backward", "grad_input", {out, a, number, at::empty_like(a)}));
    count(expect_atens_bits("aten::ones_like", "", {a, {}, {}, {}, {}, {}}, out));
  }
  EXPECT_GT(taken, 8 * kept);
}

TEST(DirectPointwise, BothInstructionSetsGiveTheSameBits) {
  Random random;
  SCOPED_TRACE(random.seed);
  for (const PointwiseKernels& kernels : {pointwise_kernels_avx2(), pointwise_kernels_avx512()}) {
    if (kernels.add == nullptr) continue;
    for (int64_t count = 1; count < 70; ++count) {
      const Tensor a =
          testing::floats_of_kind({count}, static_cast<int>(count) % 4, random);  // at most one NaN in a sum
      const Tensor b = trial_tensor({count}, TrialNumbers::kWide, random.bits()), y = at::empty({count});
      const auto given = [&](PointwiseKernel kernel) {
        kernel({floats(a), floats(b), floats(y), 1, count, 0});
        return y;
      };
      EXPECT_TRUE(same_bits(at::add(a, b), given(kernels.add)));
      EXPECT_TRUE(same_bits(at::sub(a, b), given(kernels.subtract)));
      EXPECT_TRUE(same_bits(at::mul(a, b), given(kernels.multiply)));
      EXPECT_TRUE(same_bits(at::div(a, b), given(kernels.divide)));
      EXPECT_TRUE(same_bits(at::relu(a), given(kernels.relu)));
      EXPECT_TRUE(same_bits(at::threshold_backward(b, a, 0), given(kernels.threshold_backward)));
    }
  }
}

TEST(DirectPointwise, OthersStayWithATen) {
  const Tensor a = at::empty({4, 8}), out = at::empty({4, 8}), wide = at::empty({4, 16});
  Calls calls;
  calls.add("aten::add", "out", {a, a, 2, out});                               // a factor
  calls.add("aten::add", "out", {a, wide.slice(1, 0, 16, 2), 1, out});         // gaps
  calls.add("aten::add", "out", {a, at::empty({4, 1}), 1, out});               // a column
  calls.add("aten::add", "out", {a, at::empty({8, 4}).t(), 1, out});           // another order
  calls.add("aten::add_", "Tensor", {a, a.select(0, 1), 1});                   // changes what it reads
  calls.add("aten::add", "out", {a, at::empty({4, 8}, at::kDouble), 1, out});  // another type
  calls.add("aten::mul", "out", {at::empty({1 << 18}), at::empty({1 << 18}), at::empty({1 << 18})});  // large
  calls.add("aten::relu", "", {a}, 0, {at::empty({8, 4}).t()});
  calls.add("aten::relu", "", {a.to(at::kDouble)}, 0, {at::empty({4, 8}, at::kDouble)});
  for (const bool taken : calls.taken(find_direct_pointwise)) EXPECT_FALSE(taken);
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
    float& last = floats(y)[y.numel() - 1];
    last = std::nextafter(last, 0.0F);
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

TEST(CallTrial, IsPassedOnlyIfEveryBitIsRight) {
  const auto passes = [](CallKernel (*make)(const OpCall&), int64_t rows) {
    Calls calls;
    calls.add("aten::mul", "out", {at::empty({rows, 3}), at::empty({rows, 3}), at::empty({rows, 3})});
    return is_bitexact({"aten::mul", "out", "", make, -1, true}, calls.calls[0]);
  };
  EXPECT_TRUE(passes(right_product, 20));
  EXPECT_TRUE(passes(right_product, 100000));
  EXPECT_FALSE(passes(wrong_in_the_last, 21));
  EXPECT_FALSE(passes(wrong_in_the_last, 100001));
  EXPECT_FALSE(passes(writes_an_input, 22));
  EXPECT_FALSE(passes(leaves_all_to_aten, 23));
  EXPECT_FALSE(passes([](const OpCall&) { return CallKernel(); }, 24));
}

}  // namespace
}  // namespace duet
