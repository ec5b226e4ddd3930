#include <cmath>
#include <limits>
#include <vector>
#include <ATen/ops/fill.h>
#include <gtest/gtest.h>
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
    if (!testing::computes_as_onednn_with_avx2()) GTEST_SKIP() << "oneDNN has other kernels on this CPU";
  }
  Calls layer(const LstmSizes& sizes) { return testing::lstm_calls(sizes, 0, 1.0F / 8, random_); }
  static Bools taken(const Calls& calls) { return calls.taken(find_bitexact_lstms); }
  static void expect_same(const Calls& calls) {
    int64_t taken = 0;
    EXPECT_EQ(calls.difference(taken), "");
    EXPECT_EQ(taken, 2);
  }
  const Bools both_{true, true}, neither_{false, false};
  testing::Random random_;
  const testing::Threads one_{1};
};

// Small, so that what oneDNN prepares takes most of its time.
TEST_F(BitexactLstms, AreTaken) {
  EXPECT_EQ(taken(layer({12, 6, 5, 16})), both_);
  EXPECT_EQ(taken(layer({12, 6, 16, 24, /*reverse=*/true})), both_);
  EXPECT_EQ(taken(layer({12, 6, 5, 16, false, /*has_biases=*/false})), both_);
}

TEST_F(BitexactLstms, WorkTogether) {
  const BitexactKernels kernels = layer({12, 6, 5, 16}).kernels(find_bitexact_lstms);
  EXPECT_EQ(kernels.of_call[0].together, 0);
  EXPECT_EQ(kernels.of_call[1].together, 0);
}

TEST_F(BitexactLstms, AreATensWhereTheForwardSeesNan) {
  for (const std::size_t argument : {0, 1, 5, 6}) {
    const Calls calls = layer({12, 6, 5, 16});
    calls.calls[0].arguments[argument].toTensor().view(-1)[3].fill_(std::nanf(""));
    SCOPED_TRACE(argument);
    expect_same(calls);
  }
}

// oneDNN's backward needs a workspace of its own then.
TEST_F(BitexactLstms, AreATensWhereTheBackwardSeesNan) {
  const Calls calls = layer({12, 6, 5, 16});
  for (const std::size_t argument : {10, 11, 12}) {
    Tensor grad = calls.calls[1].arguments[argument].toTensor();
    if (grad.defined()) grad.fill_(std::numeric_limits<float>::infinity());
  }
  expect_same(calls);
}

TEST_F(BitexactLstms, AreRefusedWhereOthersCompute) {
  const LstmSizes sizes{12, 6, 5, 16};
  EXPECT_EQ(taken(layer({12, 1, 5, 16})), neither_) << "products of a matrix and a vector";
  EXPECT_EQ(taken(layer({12, 6, 1, 16})), neither_);
  EXPECT_EQ(taken(layer({12, 6, 5, 20})), neither_) << "no whole vectors";
  Calls changed = layer(sizes);
  changed.calls.pop_back();
  EXPECT_EQ(taken(changed), Bools({false})) << "nothing reads the workspace";
  changed = layer(sizes);
  changed.calls.push_back(changed.calls[1]);
  EXPECT_EQ(taken(changed), Bools(3, false)) << "two backwards";
  changed = layer(sizes);
  changed.calls[1].results[0] = changed.calls[0].arguments[0].toTensor();
  EXPECT_EQ(taken(changed), neither_) << "memory that it reads";
  changed = layer(sizes);
  changed.calls[0].arguments[0] = changed.calls[0].arguments[0].toTensor().transpose(0, 1).contiguous().transpose(0, 1);
  EXPECT_EQ(taken(changed), neither_) << "gaps";
}

}  // namespace
}  // namespace duet
