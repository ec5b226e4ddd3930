#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include "tests/support/trainer_runs.h"
#include "tests/support/two_layers.h"

// Loops with several trainers over shared networks, and with a trainer that acts between its steps: captured, with the
// bits of eager mode.

namespace duet {
namespace {

using testing::expect_same_bits;
using testing::make_trainer;
using testing::same_bits;
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

// Without allow_untrained a loss gives the other network gradients too, which its own trainer throws away: a waste in
// eager mode, and nothing that a capture could hold. The weights are right.
TEST(SharedModules, TwoTrainersOfAGanAreCapturedWithTheBitsOfEager) {
  Adversaries wanted("eager", {.allow_untrained = true});
  seed_all(9);
  wanted.train(60);
  for (const auto& [mode, allowed] : {std::pair("graph", true), {"eager", false}, {"graph", false}}) {
    Adversaries run(mode, {.allow_untrained = allowed});
    seed_all(9);
    run.train(60);
    expect_same(wanted, run);
    if (!allowed) continue;
    expect_captured(*run.judges);
    expect_captured(*run.generates);
  }
}

// Features under a head, which is what its trainer adds to them.
struct HeadNet : torch::nn::Module {
  HeadNet(std::shared_ptr<Network> shared, int64_t outputs)
      : features(register_module("features", std::move(shared))),
        head(register_module("head", torch::nn::Linear(8, outputs))) {}
  at::Tensor forward(const at::Tensor& state) { return head->forward(features->forward(state)); }

  std::shared_ptr<Network> features;
  torch::nn::Linear head{nullptr};
};

// An actor and a critic over the same features, which both train. The actor acts between its steps, and its loss asks
// the critic how much better an action was than expected: without gradient, unless `through_critic`.
struct ActorCritic {
  ActorCritic(const std::string& mode, bool through_critic) {
    seed_all(5);
    const auto features = std::make_shared<Network>(torch::nn::Linear(4, 8), torch::nn::Tanh());
    const auto policy = std::make_shared<HeadNet>(features, 3), value = std::make_shared<HeadNet>(features, 1);
    const auto act = [](HeadNet& net, const Batch& batch) { return net.forward(batch["state"]); };
    const auto improve = [value, through_critic](const at::Tensor& logits, const Batch& batch) {
      const at::AutoGradMode grad_mode(through_critic);
      const at::Tensor advantage = (returns(*value, batch) - value->forward(batch["state"])).squeeze(1);
      const at::AutoGradMode on(true);
      return -(at::log_softmax(logits, 1).gather(1, batch["action"].unsqueeze(1)).squeeze(1) * advantage).mean();
    };
    const auto judge = [](HeadNet& net, const Batch& batch) {
      return at::mse_loss(net.forward(batch["state"]), returns(net, batch).detach());
    };
    TrainerOptions options;
    options.optimizer = Adam{.lr = 1e-2};
    acts = make_trainer(mode, make_task(policy, act, improve), options);
    judges = make_trainer(mode, make_task(value, judge), options);
  }

  static at::Tensor returns(HeadNet& value, const Batch& batch) {
    return batch["reward"].unsqueeze(1) + 0.9 * value.forward(batch["next"]);
  }

  // An episode is eight states, of which the next depends on what was done in the last.
  void train(int64_t episodes) {
    for (int64_t n = 0; n < episodes; ++n) {
      std::vector<at::Tensor> states = {torch::randn({1, 4})}, actions;
      for (int64_t step = 0; step < 8; ++step) {
        actions.push_back(acts->predict({{"state", states.back()}})["prediction"].argmax(1));
        states.push_back((states.back() + 0.1 * actions.back().unsqueeze(1)).sin());
      }
      const at::Tensor all = at::cat(states);
      const Batch batch = {{"state", all.slice(0, 0, 8).clone()},
                           {"next", all.slice(0, 1).clone()},
                           {"action", at::cat(actions)},
                           {"reward", all.slice(0, 1).sum(1)}};
      acts->step(batch);
      judges->step(batch);
    }
    acts->finish();
    judges->finish();
  }

  std::unique_ptr<BaseTrainer> acts, judges;
};

TEST(SharedModules, AnActorAndACriticOverSharedFeaturesHaveTheBitsOfEager) {
  for (const bool through_critic : {false, true}) {
    ActorCritic eager("eager", through_critic), graph("graph", through_critic);
    for (ActorCritic* run : {&eager, &graph}) {
      seed_all(9);
      run->train(40);
    }
    expect_same_bits(eager.acts->weights(), graph.acts->weights());
    expect_same_bits(eager.judges->weights(), graph.judges->weights());
    if (through_critic) continue;
    const at::Tensor features = graph.acts->weights().tensor("features.0.weight");
    EXPECT_TRUE(same_bits(features, graph.judges->weights().tensor("features.0.weight"))) << "both train them";
    expect_captured(*graph.acts);
    expect_captured(*graph.judges);
  }
}

// Its layer is reached by a backward pass within the backward pass alone, as that of a reentrant checkpoint.
struct InnerBackward : torch::autograd::Function<InnerBackward> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const at::Tensor* weight) {
    context->save_for_backward({x});
    context->saved_data["weight"] = reinterpret_cast<int64_t>(weight);
    return x.matmul(*weight);
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* context,
                                               const torch::autograd::tensor_list& gradients) {
    const auto* weight = reinterpret_cast<const at::Tensor*>(context->saved_data["weight"].toInt());
    const at::AutoGradMode with_grad(true);
    const at::Tensor x = context->get_saved_variables()[0].detach().requires_grad_(true);
    x.matmul(*weight).backward(gradients[0]);
    return {x.grad(), {}};
  }
};

struct HiddenLayer : torch::nn::Module {
  HiddenLayer() {
    register_module("a", a);
    weight = register_parameter("weight", torch::randn({8, 8}));
    register_module("b", b);
  }
  torch::nn::Linear a{16, 8}, b{8, 5};
  at::Tensor weight;
};

class HiddenParameters : public ::testing::TestWithParam<std::tuple<const char*, bool>> {};

TEST_P(HiddenParameters, AreTrainedAsInAPlainLoop) {
  const auto [mode, allow_untrained] = GetParam();
  const auto train = [](const auto& step) {
    for (int64_t n = 0; n < 20; ++n) step(testing::batch_at(n));
  };
  const auto loss_of = [](HiddenLayer& net, const Batch& batch) {
    const at::Tensor hidden = InnerBackward::apply(net.a(batch["input"]), &net.weight);
    return torch::nn::functional::cross_entropy(net.b(torch::relu(hidden)), batch["target"]);
  };
  torch::manual_seed(3);
  const auto plain = std::make_shared<HiddenLayer>();
  torch::optim::SGD optimizer(plain->parameters(), torch::optim::SGDOptions(0.05));
  train([&](const Batch& batch) {
    optimizer.zero_grad();
    loss_of(*plain, batch).backward();
    optimizer.step();
  });
  torch::manual_seed(3);
  const auto net = std::make_shared<HiddenLayer>();
  TrainerOptions options;
  options.optimizer = SGD{.lr = 0.05};
  options.allow_untrained = allow_untrained;
  const auto trainer = testing::make_trainer(mode, make_task(net, loss_of), options);
  train([&](const Batch& batch) { trainer->step(batch); });
  for (const auto& item : plain->named_parameters()) {
    EXPECT_TRUE(same_bits(item.value(), net->named_parameters()[item.key()])) << item.key();
  }
  if (std::string(mode) == "graph") expect_captured(*trainer);
}

INSTANTIATE_TEST_SUITE_P(All, HiddenParameters,
                         ::testing::Combine(::testing::Values("eager", "graph"), ::testing::Bool()));

}  // namespace
}  // namespace duet
