#include "graph/kernels/bitexact_rows.h"
#include <cmath>
#include <ATen/Version.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>
#include <gtest/gtest.h>
#include "base/detail/bits.h"
#include "graph/kernels/kernel_tensors.h"
#include "tests/graph/kernels/kernel_cases.h"

// duet's sums of columns, layer norm, softmax and loss give ATen's bits, NaN included.

namespace duet {
namespace {

using at::Tensor;
using testing::Calls;
using testing::floats_of_kind;
using testing::Random;
using testing::Threads;

bool has_kernels() { return row_kernels_avx2().column_sum != nullptr && at::get_cpu_capability() != "DEFAULT"; }

// A call, the way a program makes it: what an out variant writes comes last in its arguments.
struct Case {
  const char* op;
  const char* overload;
  std::vector<c10::IValue> arguments;
  std::vector<Tensor> results;

  Calls calls() const {
    std::vector<c10::IValue> all = arguments;
    if (*overload != '\0') all.insert(all.end(), results.begin(), results.end());
    Calls calls;
    calls.add(op, overload, all, 0, results);
    return calls;
  }
  bool is_taken() const { return calls().taken(find_bitexact_rows).front(); }
  Case with_new_results() const {
    Case copy = *this;
    for (Tensor& result : copy.results) result = result.defined() ? at::full_like(result, 7) : result;
    return copy;
  }
};

enum class Outcome { kNotTaken, kSameBits, kOtherBits };

Outcome outcome(const Case& ours) {
  const TrialGuard guard;
  const Calls calls = ours.calls();
  BitexactKernels kernels;
  kernels.of_call.resize(1);
  find_bitexact_rows(calls.calls, kernels);
  if (!kernels.of_call[0].run) return Outcome::kNotTaken;
  kernels.of_call[0].run();
  const Case theirs = ours.with_new_results();
  const Calls atens = theirs.calls();
  AtenCall{atens.calls[0].op, atens.calls[0].arguments, theirs.results}.run();
  for (std::size_t i = 0; i < ours.results.size(); ++i) {
    if (ours.results[i].defined() && !same_bits(ours.results[i], theirs.results[i])) return Outcome::kOtherBits;
  }
  return Outcome::kSameBits;
}

Tensor target_of(at::IntArrayRef sizes) { return at::full(sizes, 7, at::kFloat); }

// Each op once, on rows of some kind of numbers.
std::vector<Case> cases_of(int64_t rows, int64_t width, int kind, Random& random) {
  const auto numbers = [&](at::IntArrayRef sizes) {
    return floats_of_kind(sizes, random.coin() ? kind : static_cast<int>(random.between(0, 1)), random);
  };
  const Tensor x = floats_of_kind({rows, width}, kind, random), grad = numbers({rows, width});
  const Tensor weight = numbers({width}), bias = random.coin() ? numbers({width}) : Tensor();
  const Tensor mean = numbers({rows, 1}), deviation = numbers({rows, 1});
  const bool wants[] = {random.coin(), random.coin(), bias.defined()};
  const auto wanted = [&](int i, at::IntArrayRef sizes) { return wants[i] ? target_of(sizes) : Tensor(); };
  const c10::List<bool> mask({wants[0], wants[1], wants[2]});
  const std::vector<int64_t> shape = {width};
  Tensor classes = at::randint(0, width, {rows}, at::kLong);
  if (random.coin()) classes[0] = -100;
  const int64_t reduction = random.between(1, 2), ignored = -100;
  const Tensor whole = target_of({rows, width}), one = target_of({}), scalar = numbers({});
  const c10::IValue none;
  return {
      {"aten::sum", "IntList_out", {x, std::vector<int64_t>{0}, true, none}, {target_of({1, width})}},
      {"aten::native_layer_norm",
       "",
       {x, shape, weight, bias, 1e-5},
       {whole, target_of({rows, 1}), target_of({rows, 1})}},
      {"aten::native_layer_norm_backward",
       "",
       {grad, x, shape, mean, deviation, weight, bias, mask},
       {wanted(0, {rows, width}), wanted(1, {width}), wanted(2, {width})}},
      {"aten::_softmax", "out", {x, -1, false}, {whole}},
      {"aten::_log_softmax", "out", {x, 1, false}, {whole}},
      {"aten::_log_softmax_backward_data", "out", {grad, x, 1, at::kFloat}, {whole}},
      {"aten::nll_loss_forward", "output", {x, classes, none, reduction, ignored}, {one, target_of({})}},
      {"aten::nll_loss_backward",
       "grad_input",
       {scalar, x, classes, none, reduction, ignored, at::full({}, rows, at::kFloat)},
       {whole}},
  };
}

std::string text(const Case& item, int64_t rows, int64_t width, int kind) {
  return c10::str(item.op, " of ", rows, " x ", width, ", kind ", kind);
}

TEST(BitexactRows, GiveTheBitsOfATenOnUsualShapes) {
  if (!has_kernels()) GTEST_SKIP() << "no kernel of duet's for this CPU";
  Random random;
  SCOPED_TRACE(random.seed);
  const auto check = [&](int threads, int64_t rows, int64_t width) {
    const Threads scope(threads);
    for (int kind = 0; kind < testing::kKinds; ++kind) {
      for (const Case& item : cases_of(rows, width, kind, random)) {
        ASSERT_EQ(outcome(item), Outcome::kSameBits) << text(item, rows, width, kind);
      }
    }
  };
  check(1, 8, 16);
  check(1, 32, 64);
  check(1, 256, 64);
  check(1, 33, 128);
  check(2, 33, 24);
}

TEST(BitexactRows, GiveTheBitsOfATenOnAnyShape) {
  if (!has_kernels()) GTEST_SKIP() << "no kernel of duet's for this CPU";
  Random random;
  SCOPED_TRACE(random.seed);
  int taken = 0, all = 0;
  for (int round = 0; round < 60; ++round) {
    const Threads scope(round % 20 == 0 ? 2 : 1);
    const int64_t rows = random.between(1, round % 4 == 0 ? 700 : 40),
                  width = random.between(1, round % 5 == 0 ? 400 : 70);
    const int kind = round % testing::kKinds;
    for (const Case& item : cases_of(rows, width, kind, random)) {
      const Outcome result = outcome(item);
      ASSERT_NE(result, Outcome::kOtherBits) << text(item, rows, width, kind);
      ++all;
      taken += result == Outcome::kSameBits ? 1 : 0;
    }
  }
  EXPECT_GT(taken, all * 3 / 4);
}

TEST(BitexactRows, WideRowsOfLayerNorm) {
  if (!has_kernels()) GTEST_SKIP() << "no kernel of duet's for this CPU";
  Random random;
  SCOPED_TRACE(random.seed);
  const Threads one(1);
  for (const int64_t width : {129, 256, 257, 384, 1000, 2048, 5000, 12345, 16384}) {
    const std::vector<Case> cases = cases_of(5, width, 0, random);
    ASSERT_NE(outcome(cases[1]), Outcome::kOtherBits) << width;
    ASSERT_NE(outcome(cases[2]), Outcome::kOtherBits) << width;
    ASSERT_EQ(cases[1].is_taken(), true) << width;
  }
}

TEST(BitexactRows, ATargetThatIsNoClassIsAnError) {
  Random random;
  for (const std::size_t loss : {6, 7}) {
    const Case item = cases_of(6, 5, 0, random)[loss];
    item.arguments[loss - 5].toTensor()[3] = 5;
    EXPECT_THROW(
        {
          const Calls calls = item.calls();
          BitexactKernels kernels;
          kernels.of_call.resize(1);
          find_bitexact_rows(calls.calls, kernels);
          kernels.of_call[0].run();
        },
        c10::IndexError);
  }
}

// [batch, head, row, column] of what a linear layer gives, or cut from it with two others.
Tensor heads_of_kind(const std::vector<int64_t>& sizes, bool cut, int kind, Random& random) {
  const int64_t batch = sizes[0], heads = sizes[1], length = sizes[2], width = sizes[3];
  const Tensor rows = floats_of_kind({batch, length, (cut ? 3 : 1) * heads * width}, kind, random);
  return rows.narrow(2, 0, heads * width).view({batch, length, heads, width}).transpose(1, 2);
}

// Attention and its backward.
std::vector<Case> attention_cases(const std::vector<int64_t>& sizes, bool causal, int kind, Random& random) {
  const auto numbers = [&](bool cut) { return heads_of_kind(sizes, cut, random.coin() ? kind : 0, random); };
  const auto target = [&] { return at::full_like(heads_of_kind(sizes, false, 0, random), 7); };
  const auto sums = [&](int of_kind) {
    return floats_of_kind({sizes[0], sizes[2], sizes[1]}, of_kind, random).transpose(1, 2);
  };
  const Tensor q = heads_of_kind(sizes, true, kind, random), k = numbers(true), v = numbers(true);
  const c10::IValue none;
  Case forward{"aten::_scaled_dot_product_flash_attention_for_cpu",
               "",
               {q, k, v, 0.0, causal, none, none},
               {target(), at::full_like(sums(0), 7)}};
  Case backward{"aten::_scaled_dot_product_flash_attention_for_cpu_backward",
                "",
                {numbers(false), q, k, v, numbers(false), sums(kind), 0.0, causal, none, none},
                {target(), target(), target()}};
  return {forward, backward};
}

// Backward is ATen's own on a CPU whose BLAS multiplies by the scale elsewhere, such as Intel's of 2023.
TEST(BitexactAttention, GivesTheBitsOfATen) {
  if (!has_kernels()) GTEST_SKIP() << "no kernel of duet's for this CPU";
  Random random;
  SCOPED_TRACE(random.seed);
  for (const std::vector<int64_t>& sizes : std::vector<std::vector<int64_t>>{
           {1, 1, 16, 16}, {2, 3, 32, 16}, {1, 2, 48, 32}, {2, 2, 64, 32}, {1, 1, 80, 48}, {1, 2, 128, 64}}) {
    for (int round = 0; round < 2 * testing::kKinds; ++round) {
      const Threads scope(round % 12 == 0 ? 2 : 1);
      const std::vector<Case> cases = attention_cases(sizes, round % 2 == 0, round / 2, random);
      ASSERT_EQ(outcome(cases[0]), Outcome::kSameBits) << at::IntArrayRef(sizes) << ", round " << round;
      ASSERT_NE(outcome(cases[1]), Outcome::kOtherBits) << at::IntArrayRef(sizes) << ", round " << round;
    }
  }
}

// What a mask hides shows in ATen's result where it is infinite, and where it makes a 0 of a -0.
TEST(BitexactAttention, LeavesToATenWhatAMaskDoesNotHide) {
  if (!has_kernels()) GTEST_SKIP() << "no kernel of duet's for this CPU";
  Random random;
  const auto same_with = [&](std::size_t op, std::size_t argument, const auto& fill) {
    const Case item = attention_cases({1, 1, 16, 16}, true, 0, random)[op];
    fill(item.arguments[argument].toTensor()[0][0]);
    return outcome(item) != Outcome::kOtherBits;
  };
  const auto last_is_infinite = [](const Tensor& rows) { rows[15][3] = INFINITY; };
  EXPECT_TRUE(same_with(0, 2, last_is_infinite));
  for (const std::size_t argument : {1, 2, 3, 4}) EXPECT_TRUE(same_with(1, argument, last_is_infinite)) << argument;
  for (const float sum : {INFINITY, -INFINITY}) {
    EXPECT_TRUE(same_with(1, 5, [sum](const Tensor& sums) { sums[15] = sum; })) << sum;
  }
  Case overflow = attention_cases({1, 1, 16, 16}, true, 0, random)[1];
  overflow.arguments[0].toTensor()[0][0][0].fill_(1e20F);
  overflow.arguments[3].toTensor()[0][0][15].fill_(1e20F);
  EXPECT_NE(outcome(overflow), Outcome::kOtherBits);

  const Case zero = attention_cases({1, 1, 16, 16}, true, 0, random)[0];
  zero.arguments[0].toTensor().fill_(1);
  zero.arguments[1].toTensor().fill_(0)[0][0][0] = -5.75F;  // later rows give it a weight of 1e-10
  const Tensor v = zero.arguments[2].toTensor().fill_(1)[0][0];
  v.narrow(0, 0, 11).fill_(-0.0F)[0] = -1e-40F;
  EXPECT_EQ(outcome(zero), Outcome::kSameBits);
}

TEST(BitexactAttention, TakesOnlyWhatItKnows) {
  if (!has_kernels()) GTEST_SKIP() << "no kernel of duet's for this CPU";
  Random random;
  const auto takes = [&](const std::vector<int64_t>& sizes) {
    return attention_cases(sizes, true, 0, random).front().is_taken();
  };
  EXPECT_TRUE(takes({1, 1, 16, 16}));
  EXPECT_FALSE(takes({1, 1, 17, 16}));
  EXPECT_FALSE(takes({1, 1, 16, 24}));
  EXPECT_FALSE(takes({1, 1, 144, 16}));
  EXPECT_FALSE(takes({1, 1, 16, 80}));
  for (const auto& [argument, value] : std::vector<std::pair<std::size_t, c10::IValue>>{
           {1, at::ones({1, 1, 32, 16})}, {3, 0.1}, {5, at::zeros({16, 16})}, {6, 2.0}, {6, -1.0}}) {
    Case item = attention_cases({1, 1, 16, 16}, false, 0, random).front();
    item.arguments[argument] = value;
    EXPECT_FALSE(item.is_taken()) << argument;
  }
  Case in_place = attention_cases({1, 1, 16, 16}, true, 0, random).front();
  in_place.results[0] = in_place.arguments[2].toTensor();
  EXPECT_FALSE(in_place.is_taken());
}

// A sum that is right but for one bit, one that always leaves the work to ATen, and the right one.
CallKernel right_sum(const OpCall& call) { return row_sum_kernels().front().make(call); }
CallKernel wrong_sum(const OpCall& call) {
  return [kernel = right_sum(call), y = call.result(0)] {
    const bool computed = kernel();
    float& last = writable_floats_of(y)[y.numel() - 1];
    last = std::nextafter(last, 1e30F);
    return computed;
  };
}
CallKernel idle_sum(const OpCall&) {
  return [] { return false; };
}

TEST(CallKernels, AreRefusedIfOneBitDiffers) {
  if (!has_kernels()) GTEST_SKIP() << "no kernel of duet's for this CPU";
  Random random;
  const Calls calls = cases_of(9, 40, 0, random).front().calls();
  const auto accepts = [&](CallKernel (*make)(const OpCall&)) {
    return is_bitexact({"aten::sum", "IntList_out", "", make}, calls.calls[0]);
  };
  EXPECT_TRUE(accepts(right_sum));
  EXPECT_FALSE(accepts(wrong_sum));
  EXPECT_FALSE(accepts(idle_sum));
}

TEST(RowPass, TakesOnlyWhatItKnows) {
  if (!has_kernels()) GTEST_SKIP() << "no kernel of duet's for this CPU";
  Random random;
  const auto case_with = [&](std::size_t op, std::size_t argument, const c10::IValue& value) {
    Case item = cases_of(8, 16, 0, random)[op];
    item.arguments[argument] = value;
    return item.is_taken();
  };
  const Tensor strided = at::ones({16, 8}).t(), doubles = at::ones({8, 16}, at::kDouble);
  for (const Case& item : cases_of(8, 16, 0, random)) EXPECT_TRUE(item.is_taken()) << item.op;
  EXPECT_FALSE(case_with(0, 0, strided));
  EXPECT_FALSE(case_with(0, 0, doubles));
  EXPECT_FALSE(case_with(0, 1, std::vector<int64_t>{1})) << "of rows";
  EXPECT_FALSE(case_with(0, 1, c10::IValue())) << "of all";
  EXPECT_FALSE(case_with(1, 0, strided));
  EXPECT_FALSE(case_with(1, 2, c10::IValue())) << "without a weight";
  EXPECT_FALSE(case_with(2, 0, strided));
  EXPECT_FALSE(case_with(3, 1, 0)) << "of columns";
  EXPECT_FALSE(case_with(5, 0, strided));
  EXPECT_FALSE(case_with(6, 2, at::ones({16}))) << "with weights";
  EXPECT_FALSE(case_with(6, 3, 0)) << "a loss for each sample";
  EXPECT_FALSE(case_with(7, 1, at::ones({4, 32}))) << "other samples than targets";

  Case in_place = cases_of(8, 16, 0, random)[3];
  in_place.results = {in_place.arguments[0].toTensor()};
  EXPECT_FALSE(in_place.is_taken());
}

TEST(RowPass, LeavesLargeTensorsToATen) {
  if (!has_kernels()) GTEST_SKIP() << "no kernel of duet's for this CPU";
  Random random;
  const auto is_taken = [&](int threads, int64_t rows) {
    const Threads scope(threads);
    return cases_of(rows, 64, 0, random).front().is_taken();
  };
  EXPECT_TRUE(is_taken(1, 1024));
  EXPECT_FALSE(is_taken(2, 1024)) << "it is worth two threads";
  EXPECT_FALSE(is_taken(1, 8192));
}

TEST(RowPass, StepsAsideWhereOnlyTheCallingThreadFlushesDenormals) {
  if (!has_kernels()) GTEST_SKIP() << "no kernel of duet's for this CPU";
  Random random;
  const Threads two(2);
  const Case item = cases_of(8, 16, 0, random).front();
  EXPECT_TRUE(item.is_taken());
  if (!at::globalContext().setFlushDenormal(true)) GTEST_SKIP() << "this CPU cannot flush denormals";
  const bool taken = item.is_taken();
  at::globalContext().setFlushDenormal(false);
  EXPECT_FALSE(taken);
}

}  // namespace
}  // namespace duet
