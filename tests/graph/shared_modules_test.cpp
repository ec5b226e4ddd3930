#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include "tests/support/log_lines.h"
#include "tests/support/trainer_runs.h"

// Loops with several trainers over shared networks, and with a trainer that acts between its steps: captured, with the
// bits of eager mode.

namespace duet {
namespace {

using testing::expect_same_bits;
using ::testing::HasSubstr;
using testing::make_trainer;
using ::testing::Not;
using testing::same_bits;
using testing::stderr_of;
using Network = torch::nn::SequentialImpl;

std::shared_ptr<Network> two_layers(int64_t inputs, int64_t outputs) {
  return std::make_shared<Network>(torch::nn::Linear(inputs, 16), torch::nn::BatchNorm1d(16), torch::nn::LeakyReLU(),
                                   torch::nn::Linear(16, outputs));
}

// A generator and a discriminator, each with a trainer whose loss calls the other.
struct Adversaries {
  Adversaries(const std::string& mode, TrainerOptions options) {
    seed_all(3);
    generator = two_layers(4, 6);
    discriminator = two_layers(6, 1);
    const auto real = [generator = generator](Network& own, const Batch& batch) {
      at::Tensor fake;
      {
        const at::NoGradGuard no_grad;
        fake = generator->forward(batch["noise"]);
      }
      const at::Tensor point = batch["point"].detach().requires_grad_();
      const at::Tensor score = own.forward(point);
      const at::Tensor slope = torch::autograd::grad({score.sum()}, {point}, {}, {}, /*create_graph=*/true)[0];
      return at::softplus(-score).mean() + at::softplus(own.forward(fake)).mean() + slope.square().mean();
    };
    const auto fool = [discriminator = discriminator](const at::Tensor& fake, const Batch&) {
      return at::softplus(-discriminator->forward(fake)).mean();
    };
    const auto forward = [](Network& own, const Batch& batch) { return own.forward(batch["noise"]); };
    options.optimizer = Adam{.lr = 1e-2};
    judges = make_trainer(mode, make_task(discriminator, real), options);
    generates = make_trainer(mode, make_task(generator, forward, fool), options);
  }

  void train(int64_t steps) {
    for (int64_t n = 0; n < steps; ++n) {
      judges->step({{"noise", torch::randn({8, 4})}, {"point", torch::randn({8, 6})}});
      generates->step({{"noise", torch::randn({8, 4})}});
      if (n % 5 == 2) outputs.push_back(generates->predict({{"noise", torch::randn({n % 3 + 1, 4})}})["prediction"]);
    }
    judges->finish();
    generates->finish();
  }

  std::shared_ptr<Network> generator, discriminator;
  std::unique_ptr<BaseTrainer> judges, generates;
  std::vector<at::Tensor> outputs;
};

void expect_same(const Adversaries& a, const Adversaries& b) {
  expect_same_bits(a.judges->weights(), b.judges->weights());
  expect_same_bits(a.generates->weights(), b.generates->weights());
  ASSERT_EQ(a.outputs.size(), b.outputs.size());
  for (std::size_t i = 0; i < a.outputs.size(); ++i) EXPECT_TRUE(same_bits(a.outputs[i], b.outputs[i])) << i;
}

void expect_captured(const BaseTrainer& trainer) {
  for (const SignatureReport& report : dynamic_cast<const GraphTrainer&>(trainer).report()) {
    EXPECT_EQ(report.reason, "");
    if (report.kind != "step") continue;
    EXPECT_EQ(report.state, "captured") << report.signature;
  }
}

TEST(SharedModules, TwoTrainersOfAGanAreCapturedWithTheBitsOfEager) {
  Adversaries eager("eager", {.allow_untrained = true}), graph("graph", {.allow_untrained = true});
  for (Adversaries* run : {&eager, &graph}) {
    seed_all(9);
    run->train(60);
  }
  expect_same(eager, graph);
  expect_captured(*graph.judges);
  expect_captured(*graph.generates);
}

// Without allow_untrained a loss gives the other network gradients too, which its own trainer throws away: a waste in
// eager mode, and nothing that a capture could hold. The weights are right, and a warning says what to set.
TEST(SharedModules, GradientsThatNobodyAskedForChangeNothingAndAreNamed) {
  Adversaries asked("eager", {.allow_untrained = true});
  seed_all(9);
  EXPECT_THAT(stderr_of([&] { asked.train(60); }), Not(HasSubstr("allow_untrained")));
  for (const char* mode : {"eager", "graph"}) {
    Adversaries run(mode, {});
    seed_all(9);
    const std::string said = stderr_of([&] { run.train(60); });
    EXPECT_THAT(said, HasSubstr("6 tensors that are no parameters of the task (the first is "));
    EXPECT_THAT(said, HasSubstr("Set TrainerOptions::allow_untrained = true"));
    expect_same(asked, run);
  }
}

}  // namespace
}  // namespace duet
