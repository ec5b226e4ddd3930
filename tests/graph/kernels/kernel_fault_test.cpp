#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include "base/error.h"
#include "tests/graph/kernels/trainer_with_kernels.h"

// A kernel of duet's that gives other bits than LibTorch's during training is found, named and switched off, and
// training goes on.

namespace duet {
namespace {

using testing::batch_at;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::same_bits;
using testing::TrainerWithKernels;

// Products that are LibTorch's; those of 8 by 16, one of which the step has, are wrong so many times.
int wrong_results = 0;
constexpr int kAlways = 1 << 30;

void find_products(const std::vector<OpCall>& calls, BitexactKernels& kernels) {
  for (std::size_t i = 0; i < calls.size(); ++i) {
    if (!calls[i].is("aten::mm", "out")) continue;
    const at::Tensor a = calls[i].floats(0), b = calls[i].floats(1);
    kernels.of_call[i] = {[a, b, out = calls[i].floats(2)]() mutable {
                            at::mm_out(out, a, b);
                            const bool sabotaged = out.size(0) == 8 && out.size(1) == 16;
                            if (!sabotaged || wrong_results == 0) return;
                            --wrong_results;
                            float& first = *static_cast<float*>(out.mutable_data_ptr());
                            first = std::nextafter(first, 1e30F);
                          },
                          "sabotaged product"};
  }
}

struct KernelFault {
  explicit KernelFault(const GraphOptions& options = {.verify_interval = 1}) : graph(find_products, options) {
    wrong_results = 0;
    expect_same_steps(0, 6);
  }
  void expect_same_steps(int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      ASSERT_TRUE(same_bits(eager->step(batch_at(n)).loss, graph.step(batch_at(n)).loss)) << "step " << n;
    }
    testing::expect_same_bits(eager->state_dict(), graph.state_dict());
  }

  std::shared_ptr<testing::TwoLayers> eager_net = TrainerWithKernels::make_two_layers();
  std::unique_ptr<BaseTrainer> eager = TrainerWithKernels::eager(eager_net);
  TrainerWithKernels graph;
};

TEST(KernelFault, IsNamedAndSwitchedOffAndTrainingGoesOn) {
  KernelFault run;
  EXPECT_EQ(run.graph.report().state, "captured");
  EXPECT_THAT(run.graph.graph().program_text(), HasSubstr("sabotaged product"));
  wrong_results = kAlways;
  run.expect_same_steps(6, 12);
  EXPECT_EQ(run.graph.report().state, "captured");
  EXPECT_THAT(run.graph.report().reason, HasSubstr("sabotaged product in aten::mm.out(Float[8, 8], Float[8, 16])"));
  EXPECT_THAT(run.graph.graph().program_text(), Not(HasSubstr("sabotaged product")));
}

TEST(KernelFault, ThatDoesNotComeAgainIsNotBlamed) {
  KernelFault run;
  wrong_results = 1;
  run.expect_same_steps(6, 12);
  EXPECT_EQ(run.graph.report().state, "eager");
  EXPECT_THAT(run.graph.report().reason, HasSubstr("its replay differs"));
}

TEST(KernelFault, LeavesTheGradientsOfTheEagerRun) {
  KernelFault run;
  wrong_results = kAlways;
  run.eager->step(batch_at(6));
  run.graph.step(batch_at(6));
  EXPECT_THAT(run.graph.report().reason, HasSubstr("sabotaged product"));
  const std::vector<at::Tensor> expected = run.eager_net->parameters(), given = run.graph.parameters();
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(same_bits(expected[i].grad(), given[i].grad())) << i;
}

TEST(KernelFault, EndsAStrictRun) {
  KernelFault run({.fallback = Fallback::kStrict, .verify_interval = 1});
  wrong_results = kAlways;
  try {
    run.graph.step(batch_at(6));
    ADD_FAILURE() << "went on";
  } catch (const GraphError& error) {
    EXPECT_THAT(error.what(), HasSubstr("sabotaged product in aten::mm.out"));
    EXPECT_THAT(error.what(), HasSubstr("duet's kernels for sabotaged products are switched off"));
  }
}

TEST(KernelFault, BetweenRareComparisonsDoesNotEndTheRunEither) {
  KernelFault run({.verify_interval = 4});
  wrong_results = kAlways;
  for (int64_t n = 6; n < 40; ++n) run.graph.step(batch_at(n));
  EXPECT_EQ(run.graph.report().state, "captured");
  EXPECT_THAT(run.graph.report().reason, HasSubstr("sabotaged product"));
}

// Its workspace has bytes that nobody writes, which is no reason for other bits.
void find_lstms(const std::vector<OpCall>& calls, BitexactKernels& kernels) {
  for (std::size_t i = 0; i < calls.size(); ++i) {
    if (!calls[i].is("aten::mkldnn_rnn_layer", "")) continue;
    kernels.of_call[i] = {[call = calls[i]] {
                            call.run_as_aten();
                            if (wrong_results > 0) call.results[0].mul_(1.5);
                          },
                          "sabotaged LSTM"};
  }
}

TEST(KernelFault, OfAnLstmIsNamed) {
  seed_all(3);
  static const KernelPass pass = {"sabotaged LSTMs", &find_lstms};
  const auto net = std::make_shared<torch::nn::LSTMImpl>(5, 16);
  testing::TrainerWithPasses graph(
      make_task(net, [](torch::nn::LSTMImpl& lstm,
                        const Batch& batch) { return std::get<0>(lstm.forward(batch["x"])).mean(); }),
      {&pass}, {.verify_interval = 1});
  wrong_results = 0;
  for (int64_t n = 0; n < 8; ++n) {
    wrong_results = n < 6 ? 0 : kAlways;
    graph.step({{"x", torch::randn({4, 3, 5})}});
  }
  EXPECT_THAT(graph.graph().report().front().reason, HasSubstr("sabotaged LSTM in aten::mkldnn_rnn_layer"));
}

}  // namespace
}  // namespace duet
