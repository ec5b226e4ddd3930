#include <cfenv>
#include <vector>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include "graph/kernels/call_kernels.h"
#include "tests/graph/kernels/call_families.h"

// Which convolutions are duet's, and what zeros around an image would change. On random shapes: OwnKernels.

namespace duet {
namespace {

using at::Tensor;
using testing::Calls;
using testing::ConvolutionNumbers;
using Bools = std::vector<bool>;

const ConvolutionNumbers kSame3x3 = {{1, 1}, {1, 1}, {1, 1}};

Tensor ones(at::IntArrayRef sizes) { return at::ones(sizes); }

// Where oneDNN computes as duet's kernels do.
class BitexactConvolutions : public ::testing::Test {
 protected:
  void SetUp() override {
    const bool as_onednn = testing::computes_as_onednn_with("AVX2") || testing::computes_as_onednn_with("AVX512");
    if (!as_onednn) GTEST_SKIP() << "oneDNN has other kernels on this CPU";
  }
  // Small, so that oneDNN's layouts take most of its time.
  static Calls layer(int64_t channels, bool wants_x = true) {
    return testing::convolution_calls({ones({16, channels, 6, 6}), ones({16, channels, 3, 3}), ones({16})}, kSame3x3,
                                      wants_x);
  }
  static void expect_same(const Calls& calls, int64_t expected) {
    int64_t taken = 0;
    EXPECT_EQ(calls.difference(taken), "");
    EXPECT_EQ(taken, expected);
  }
  const testing::Threads one{1};
};

TEST_F(BitexactConvolutions, AreTakenForward) {
  for (const int64_t channels : {1, 3, 8, 16}) EXPECT_TRUE(layer(channels).taken(find_bitexact_convs)[0]) << channels;
}

TEST_F(BitexactConvolutions, AreTakenBackward) {
  for (const int64_t channels : {1, 16}) {
    EXPECT_TRUE(layer(channels, false).taken(find_bitexact_convs)[1]) << channels;
    EXPECT_TRUE(layer(channels, true).taken(find_bitexact_convs)[1]) << channels;
  }
}

struct Shape {
  std::vector<int64_t> x, weight;
  ConvolutionNumbers numbers;
  Bools taken() const {
    return testing::convolution_calls({ones(x), ones(weight), ones({weight[0]})}, numbers, true)
        .taken(find_bitexact_convs);
  }
};

TEST_F(BitexactConvolutions, AddUpInOneDnnsOrderInEveryShape) {
  std::vector<Shape> shapes = {
      {{16, 32, 9, 29}, {32, 32, 3, 3}, kSame3x3},
      {{16, 48, 5, 15}, {40, 48, 3, 3}, {{1, 1}, {0, 0}, {1, 1}}},
      {{16, 16, 6, 4}, {48, 16, 3, 3}, {{1, 1}, {2, 2}, {1, 1}}},
      {{16, 32, 13, 12}, {16, 32, 5, 5}, {{1, 1}, {1, 1}, {1, 1}}},
      {{16, 3, 17, 33}, {16, 3, 5, 5}, {{2, 2}, {2, 2}, {1, 1}}},
      {{16, 64, 4, 4}, {32, 64, 3, 3}, kSame3x3},
      {{16, 16, 40}, {32, 16, 3}, {{1}, {1}, {1}}},
  };
  for (const Shape& shape : shapes)
    EXPECT_EQ(shape.taken(), Bools({true, true})) << at::IntArrayRef(shape.x) << at::IntArrayRef(shape.weight);
}

// A product for oneDNN, which cuts the images of a gradient of weights by their number.
TEST_F(BitexactConvolutions, AreRefusedWhereOnePixelIsLeft) {
  for (const int64_t images : {16, 64}) {
    const Shape shape{{images, 3, 7, 7}, {32, 3, 7, 7}, {{1, 1}, {0, 0}, {1, 1}}};
    EXPECT_EQ(shape.taken(), Bools({false, false})) << images;
  }
}

TEST_F(BitexactConvolutions, KeepAMinusZeroThatIsTheBias) {
  const Tensor x = at::zeros({16, 16, 6, 6}), bias = at::full({16}, -0.0F, at::kFloat);
  Calls calls = testing::convolution_calls({x, at::full({16, 16, 3, 3}, -1.0F, at::kFloat), bias}, kSame3x3, false);
  calls.calls.pop_back();
  expect_same(calls, 1);
}

// The only product but zeros of the first weight, and of the first pixel.
TEST_F(BitexactConvolutions, KeepAMinusZeroThatIsTooSmallAProduct) {
  const Tensor x = at::zeros({16, 16, 6, 6}), weight = ones({16, 16, 3, 3});
  x.select(2, 0).select(2, 0).fill_(1e-30F);
  weight.fill_(-1e-30F);
  Calls calls = testing::convolution_calls({x, weight, Tensor()}, kSame3x3, true);
  const Tensor grad = calls.calls[1].arguments[0].toTensor();
  grad.fill_(0).select(2, 0).select(2, 0).fill_(-1e-30F);
  expect_same(calls, 2);
}

TEST_F(BitexactConvolutions, AreRefusedWhereOthersCompute) {
  const Tensor x = ones({16, 16, 6, 6}), weight = ones({16, 16, 3, 3}), none;
  const auto taken = [](const Calls& calls) { return calls.taken(find_bitexact_convs); };
  const Bools neither = {false, false};
  const Calls plain = testing::convolution_calls({x, weight, none}, kSame3x3, true);
  ASSERT_EQ(taken(plain), Bools({true, true}));
  EXPECT_EQ(taken(testing::convolution_calls({x.to(at::kDouble), weight.to(at::kDouble), none}, kSame3x3, true)),
            neither);
  EXPECT_EQ(
      taken(testing::convolution_calls({x.contiguous(at::MemoryFormat::ChannelsLast), weight, none}, kSame3x3, true)),
      neither);
  EXPECT_EQ(taken(testing::convolution_calls({ones({16, 16, 6, 6, 6}), ones({16, 16, 3, 3, 3}), none},
                                             {{1, 1, 1}, {1, 1, 1}, {1, 1, 1}}, true)),
            neither);
  Calls changed = plain;
  changed.calls[0].results[0] = x;
  changed.calls[1].results[0] = x;
  EXPECT_EQ(taken(changed), neither) << "memory that it reads";
  changed = plain;
  for (OpCall& call : changed.calls) call.arguments[call.arguments.size() == 9 ? 6 : 7] = true;
  EXPECT_EQ(taken(changed), neither) << "transposed";
  changed = plain;
  changed.calls[1].arguments[10] = c10::List<bool>({true, false, false});
  changed.calls[1].results = {changed.calls[1].results[0], none, none};
  EXPECT_EQ(taken(changed), Bools({true, false})) << "no gradient of weights";
  at::globalContext().setUserEnabledMkldnn(false);
  EXPECT_EQ(taken(plain), neither) << "oneDNN is off";
  at::globalContext().setUserEnabledMkldnn(true);
  std::fesetround(FE_DOWNWARD);
  EXPECT_EQ(taken(plain), neither) << "a sum of zeros is -0";
  std::fesetround(FE_TONEAREST);
}

// Right, and as slow as can be.
CallKernel make_slow(const OpCall& call) {
  return [call] {
    for (int i = 0; i < 3; ++i) call.run_as_aten();
    return true;
  };
}

TEST_F(BitexactConvolutions, AreLibTorchsWhereThatTakesLessTime) {
  const Calls calls = layer(16);
  BitexactKernels kernels;
  kernels.of_call.resize(calls.calls.size());
  const auto find = [&](bool must_be_faster) {
    CallKernelMaker maker{"aten::convolution", "", "slow", make_slow};
    maker.must_be_faster = must_be_faster;
    find_call_kernels({maker}, calls.calls, kernels);
    return kernels.of_call[0].run != nullptr;
  };
  EXPECT_FALSE(find(true));
}

}  // namespace
}  // namespace duet
