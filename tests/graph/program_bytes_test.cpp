#include <cmath>
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include "graph/graph_trainer.h"

// What a captured step says that it takes, against what malloc has handed out.

namespace duet {
namespace {

int64_t allocated() {
  const struct mallinfo2 info = mallinfo2();
  return static_cast<int64_t>(info.uordblks + info.hblkhd);
}

// Many small ops, where programs weigh more than tensors, and few large ones.
class ProgramBytes : public ::testing::TestWithParam<std::pair<int64_t, int64_t>> {};

TEST_P(ProgramBytes, AreThoseThatTheHeapGrowsBy) {
  const auto [layers, width] = GetParam();
  torch::nn::Sequential net;
  for (int64_t i = 0; i < layers; ++i) net->push_back(torch::nn::Linear(width, width));
  GraphTrainer trainer(
      make_task(net.ptr(), [](torch::nn::SequentialImpl& module,
                              const Batch& batch) { return module.forward(batch["x"]).square().mean(); }),
      {.optimizer = SGD{.lr = 1e-3}, .device = "cpu"}, {.fuse_after = 0});
  const auto train = [&, width = width](int64_t size) {
    for (int step = 0; step < 6; ++step) trainer.step({{"x", at::full({size, width}, 0.1)}});
  };
  for (const int64_t size : {2, 3}) train(size);
  const int64_t before = allocated();
  for (int64_t size = 4; size < 16; ++size) train(size);
  const int64_t grown = allocated() - before;
  if (grown == 0) GTEST_SKIP() << "another malloc than glibc's, as under sanitizers";
  int64_t bytes = 0;
  for (const SignatureReport& report : trainer.report()) {
    EXPECT_EQ(report.state, "captured") << report.reason;
    if (report.signature.find("[2,") == std::string::npos && report.signature.find("[3,") == std::string::npos)
      bytes += report.bytes;
  }
  EXPECT_NEAR(static_cast<double>(bytes) / static_cast<double>(grown), 1.0, 0.2) << bytes << " of " << grown;
}

INSTANTIATE_TEST_SUITE_P(Models, ProgramBytes, ::testing::Values(std::pair(60, 4), std::pair(20, 256)));

}  // namespace
}  // namespace duet
