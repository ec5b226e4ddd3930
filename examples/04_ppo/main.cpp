// PPO on CartPole, in a loop of your own: the trainer acts (predict) and learns (step), both captured in graph mode.
// examples/python/ppo_cartpole.py is the same loop in plain PyTorch.
//
// run:      build/release/examples/04_ppo graph     or eager: the same episodes and weights; [STEPS [FILE]]: at most
//           so many steps, and where to write the weights
// expected: "102912 steps, mean return 477.68 over 100 episodes" or so, where 475 counts as solved

#include <ctime>
#include <deque>
#include <iostream>
#include <numeric>
#include <duet/duet.h>
#include <torch/torch.h>
#include "cart_pole.h"

constexpr int64_t kPoles = 8, kHorizon = 32, kEpochs = 5, kMinibatch = 64;
constexpr double kGamma = 0.98, kLambda = 0.8, kClip = 0.2, kValueWeight = 0.5, kLearningRate = 1e-3, kSolved = 475;
constexpr std::size_t kEpisodes = 100;

torch::nn::Sequential network(int64_t outputs, double gain) {
  const auto layer = [](int64_t from, int64_t to, double gain) {
    torch::nn::Linear linear(from, to);
    torch::nn::init::orthogonal_(linear->weight, gain);
    torch::nn::init::zeros_(linear->bias);
    return linear;
  };
  torch::nn::Sequential layers(layer(4, 64, std::sqrt(2)), torch::nn::Tanh());
  layers->push_back(layer(64, 64, std::sqrt(2)));
  layers->push_back(torch::nn::Tanh());
  layers->push_back(layer(64, outputs, gain));
  return layers;
}

struct Agent : torch::nn::Module {
  torch::nn::Sequential policy = register_module("policy", network(2, 0.01));
  torch::nn::Sequential value = register_module("value", network(1, 1.0));
  // Of each state: logits of both actions, and what it is worth.
  at::Tensor forward(const at::Tensor& state) { return torch::cat({policy->forward(state), value->forward(state)}, 1); }
};

at::Tensor ppo_loss(const at::Tensor& output, const duet::Batch& batch) {
  const at::Tensor chances = output.narrow(1, 0, 2).log_softmax(1).gather(1, batch["action"]);
  const at::Tensor ratio = (chances - batch["chances"]).exp();
  const at::Tensor advantage = (batch["advantage"] - batch["advantage"].mean()) / (batch["advantage"].std() + 1e-8);
  const at::Tensor gain = torch::min(ratio * advantage, ratio.clamp(1 - kClip, 1 + kClip) * advantage).mean();
  return kValueWeight * torch::mse_loss(output.narrow(1, 2, 1), batch["return"]) - gain;
}

// kHorizon steps of all poles as one batch: a row per pole and step, with generalized advantage estimates.
duet::Batch collect(duet::BaseTrainer& trainer, CartPole& poles, std::deque<double>& returns) {
  // The poles are on the CPU, wherever the trainer is.
  const auto act = [&](const at::Tensor& state) { return trainer.predict({{"state", state}})["prediction"].cpu(); };
  std::vector<at::Tensor> states, actions, chances, values, rewards, goes_on, advantages(kHorizon);
  for (int64_t t = 0; t < kHorizon; ++t) {
    states.push_back(poles.state());
    const at::Tensor output = act(states.back());
    const at::Tensor logs = output.narrow(1, 0, 2).log_softmax(1);
    actions.push_back(torch::multinomial(logs.exp(), 1));
    chances.push_back(logs.gather(1, actions.back()));
    values.push_back(output.narrow(1, 2, 1));
    const CartPole::Moved moved = poles.step(actions.back());
    rewards.push_back(torch::ones({kPoles, 1}));
    // An episode that runs out of time would have gone on: what its state is worth stands for the rest.
    if (moved.late.any().item<bool>()) rewards.back() += kGamma * moved.late * act(moved.state).narrow(1, 2, 1);
    goes_on.push_back((moved.fell | moved.late).logical_not());
    returns.insert(returns.end(), moved.returns.begin(), moved.returns.end());
  }
  at::Tensor value_after = act(poles.state()).narrow(1, 2, 1), later = torch::zeros({kPoles, 1});
  for (int64_t t = kHorizon - 1; t >= 0; --t) {
    later = rewards[t] + kGamma * value_after * goes_on[t] - values[t] + kGamma * kLambda * later * goes_on[t];
    advantages[t] = later;
    value_after = values[t];
  }
  const at::Tensor advantage = torch::cat(advantages);
  return {{"state", torch::cat(states)},
          {"action", torch::cat(actions)},
          {"chances", torch::cat(chances)},
          {"advantage", advantage},
          {"return", advantage + torch::cat(values)}};
}

void learn(duet::BaseTrainer& trainer, const duet::Batch& batch) {
  for (int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    for (const at::Tensor& rows : torch::randperm(kPoles * kHorizon).split(kMinibatch)) {
      trainer.step(batch.mapped([&](const at::Tensor& column) { return column.index_select(0, rows); }));
    }
  }
}

int main(int argc, char** argv) {
  const duet::Mode mode = duet::parse_mode(argc > 1 ? argv[1] : "graph");
  const int64_t max_steps = argc > 2 ? std::stoll(argv[2]) : 300'000;
  torch::set_num_threads(1);
  duet::seed_all(1);
  const auto forward = [](Agent& agent, const duet::Batch& batch) { return agent.forward(batch["state"]); };
  const auto trainer = duet::make_trainer(mode, duet::make_task(std::make_shared<Agent>(), forward, ppo_loss),
                                          {.optimizer = duet::Adam{.lr = kLearningRate}});
  CartPole poles(kPoles);
  std::deque<double> returns;  // of the latest episodes
  int64_t steps = 0;
  double mean = 0;
  std::clock_t acting = 0, learning = 0;
  while (steps < max_steps && (returns.size() < kEpisodes || mean < kSolved)) {
    const std::clock_t start = std::clock();
    const duet::Batch batch = collect(*trainer, poles, returns);
    const std::clock_t middle = std::clock();
    learn(*trainer, batch);
    acting += middle - start;
    learning += std::clock() - middle;
    steps += kPoles * kHorizon;
    while (returns.size() > kEpisodes) returns.pop_front();
    mean = std::accumulate(returns.begin(), returns.end(), 0.0) / std::max<double>(1, returns.size());
  }
  trainer->finish();
  const auto seconds = [](std::clock_t ticks) { return static_cast<double>(ticks) / CLOCKS_PER_SEC; };
  std::cout << steps << " steps, mean return " << mean << " over " << returns.size() << " episodes\n"
            << "CPU seconds: " << seconds(acting) << " acting, " << seconds(learning) << " learning\n"
            << "weights " << duet::weights_hash(trainer->weights()) << "\n";
  if (argc > 3) duet::write_weights(argv[3], trainer->weights());
}
