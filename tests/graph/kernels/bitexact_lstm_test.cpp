#include <cmath>
#include <limits>
#include <vector>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>
#include "graph/kernels/lstm_layer.h"
#include "tests/graph/kernels/call_families.h"

// Which layers of LSTMs are duet's, and where ATen's take over. On random shapes: OwnKernels.

namespace duet {
namespace {

using at::Tensor;
using testing::Calls;
using testing::LstmSizes;
using Bools = std::vector<bool>;

class BitexactLstms : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!testing::computes_as_onednn_with("AVX2")) GTEST_SKIP() << "not tried with another order of oneDNN's";
  }
  Calls layer(const LstmSizes& sizes) { return testing::lstm_calls(sizes, 0, 1.0F / 8, random_); }
  static Bools taken(const Calls& calls) { return calls.taken(find_bitexact_lstms); }
  static Tensor argument(const Calls& calls, std::size_t call, std::size_t i) {
    return calls.calls[call].arguments[i].toTensor();
  }
  static void expect_same(const Calls& calls) {
    int64_t taken = 0;
    EXPECT_EQ(calls.difference(taken), "");
    EXPECT_EQ(taken, 2);
  }
  const LstmSizes small_{12, 6, 5, 16};
  const Bools both_{true, true}, neither_{false, false};
  testing::Random random_;
  const testing::Threads one_{1};
};

// Small, so that what oneDNN prepares takes most of its time.
TEST_F(BitexactLstms, AreTaken) {
  for (int i = 0; i < 10; ++i) EXPECT_EQ(taken(layer(small_)), both_);  // gradients of all kinds
  EXPECT_EQ(taken(layer({12, 6, 16, 24, /*reverse=*/true})), both_);
  EXPECT_EQ(taken(layer({12, 6, 5, 16, false, /*has_biases=*/false})), both_);
  const BitexactKernels kernels = layer(small_).kernels(find_bitexact_lstms);
  for (const BitexactKernel& kernel : kernels.of_call) EXPECT_EQ(kernel.together, 0);
}

// oneDNN's results are taken then: which of two NaN that meet goes on is its affair.
TEST_F(BitexactLstms, AreATensWhereTheForwardSeesNan) {
  for (const std::size_t i : {0, 1, 5, 6}) {
    const Calls calls = layer(small_);
    const LstmCalls both{calls.calls[0], calls.calls[1], kOneDnnAvx2};
    EXPECT_TRUE(both.run_forward());
    argument(calls, 0, i).view(-1).narrow(0, 3, 9).fill_(std::nanf(""));
    EXPECT_FALSE(both.run_forward()) << "argument " << i;
  }
}

// Its backward needs a workspace of its own then: duet's has the values elsewhere.
TEST_F(BitexactLstms, AreATensWhereTheBackwardSeesNan) {
  for (const bool reverse : {false, true}) {
    Calls calls = layer({12, 6, 5, 16, reverse});
    const LstmCalls plain{calls.calls[0], calls.calls[1], kOneDnnAvx2};
    EXPECT_TRUE(plain.run_forward() && plain.run_backward());
    calls.calls[1].arguments[10] = at::full({12, 6, 16}, std::numeric_limits<float>::infinity(), at::kFloat);
    const LstmCalls both{calls.calls[0], calls.calls[1], kOneDnnAvx2};
    EXPECT_TRUE(both.run_forward());
    EXPECT_FALSE(both.run_backward());
    expect_same(calls);
  }
}

TEST_F(BitexactLstms, AreRefusedWhereOthersCompute) {
  EXPECT_EQ(taken(layer({12, 1, 5, 16})), neither_) << "products of a matrix and a vector";
  EXPECT_EQ(taken(layer({12, 6, 1, 16})), neither_);
  EXPECT_EQ(taken(layer({12, 6, 5, 20})), neither_) << "no whole vectors";
  EXPECT_EQ(taken(layer({2, 2, 5, 504})), neither_) << "oneDNN copies";
  Calls changed = layer(small_);
  changed.calls[1].results[0] = argument(changed, 0, 0);
  EXPECT_EQ(taken(changed), neither_) << "memory that it reads";
  changed = layer(small_);
  const Tensor x = argument(changed, 0, 0).transpose(0, 1).contiguous().transpose(0, 1);
  for (OpCall& call : changed.calls) call.arguments[0] = x;
  EXPECT_EQ(taken(changed), neither_) << "gaps";
}

TEST_F(BitexactLstms, ThatAreNoPairAreRefused) {
  Calls changed = layer(small_);
  changed.calls.pop_back();
  EXPECT_EQ(taken(changed), Bools({false})) << "nothing reads the workspace";
  changed = layer(small_);
  changed.calls.push_back(changed.calls[1]);
  EXPECT_EQ(taken(changed), Bools(3, false)) << "two backwards";
  changed = layer(small_);
  changed.calls[1].segment = 1;
  EXPECT_EQ(taken(changed), neither_) << "host code in between";
  for (const std::size_t i : {0, 1, 5, 7, 8}) {
    changed = layer(small_);
    changed.calls[1].arguments[i] = argument(changed, 1, i).clone();
    EXPECT_EQ(taken(changed), neither_) << "another tensor as argument " << i;
  }
  for (const std::size_t i : {0, 2, 6, 7}) {
    changed = layer(small_);
    Calls write;
    write.add("aten::mul_", "Scalar", {argument(changed, 1, i), 2});
    changed.calls.insert(changed.calls.begin() + 1, write.calls[0]);
    EXPECT_EQ(taken(changed), Bools(3, false)) << "a write to argument " << i;
  }
}

// One chain of multiply-adds in each block of terms; those of even terms and of odd ones, added, where few rows or
// columns are left.
float sum_in_order(const std::vector<float>& a, const std::vector<float>& b, const LstmOrder& order, bool by_parity) {
  float sum = 0;
  std::size_t terms = 0;
  for (std::size_t k = 0; k < a.size(); k += terms) {
    const std::size_t left = a.size() - k, most = order.product_terms;
    terms = left >= 2 * most ? most : left > most ? (left + 1) / 2 : left;
    float parts[2] = {0, 0};
    const std::size_t pairs = by_parity ? terms / 2 * 2 : 0;
    for (std::size_t i = 0; i < pairs; ++i) parts[i % 2] = std::fma(a[k + i], b[k + i], parts[i % 2]);
    float part = parts[0] + parts[1];
    for (std::size_t i = pairs; i < terms; ++i) part = std::fma(a[k + i], b[k + i], part);
    sum = k == 0 ? part : sum + part;
  }
  return sum;
}

// Of 16 columns, and of 5 more; 9 rows: 6 and 3.
TEST(LstmProducts, AddUpInTheOrderOfEachInstructionSet) {
  const LstmKernels kernels = cpu_kernels().lstm;
  if (kernels.multiply == nullptr) GTEST_SKIP() << "no kernel for this CPU";
  testing::Random random;
  SCOPED_TRACE(random.seed);
  for (const LstmOrder& order : {kOneDnnAvx2, kOneDnnAvx512}) {
    for (const int64_t depth : {1, 7, 64, 300, 385, 1000}) {
      constexpr int64_t kRows = 9, kColumns = 21;
      const Tensor a = testing::floats_of_kind({kRows, depth}, 0, random), c = testing::target({kRows, kColumns});
      const Tensor b = testing::floats_of_kind({kColumns, depth}, 0, random);
      LstmProduct product{kRows, kColumns, depth, a.const_data_ptr<float>(), depth, 1};
      std::vector<float> panels(panels_size(product));
      kernels.pack(product, b.const_data_ptr<float>(), true, panels.data());
      product.c = static_cast<float*>(c.mutable_data_ptr()), product.rows_of_thread = kRows;
      product.terms = order.product_terms, product.by_parity = order.by_parity;
      EXPECT_TRUE(kernels.multiply(product, {0, kRows}));
      const auto row_of = [&](const Tensor& matrix, int64_t row) {
        const float* const begin = matrix.const_data_ptr<float>() + row * depth;
        return std::vector<float>(begin, begin + depth);
      };
      for (int64_t i = 0; i < kRows * kColumns; ++i) {
        const bool by_parity = order.by_parity && (i / kColumns >= 6 || i % kColumns >= 16);
        EXPECT_EQ(product.c[i], sum_in_order(row_of(a, i / kColumns), row_of(b, i % kColumns), order, by_parity)) << i;
      }
    }
  }
}

}  // namespace
}  // namespace duet
