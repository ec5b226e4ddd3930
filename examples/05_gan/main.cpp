// A GAN whose points lie in eight heaps on a ring: two trainers, each of one network, whose loss also calls the
// other's. Both steps are captured in graph mode, the gradient penalty (a gradient of a gradient) included.
//
// run:      build/release/examples/05_gan graph     or eager: the same weights
// expected: "8 of 8 heaps found, 82% of the points lie in one", or so

#include <ctime>
#include <iostream>
#include <duet/duet.h>
#include <torch/torch.h>

using Net = torch::nn::SequentialImpl;

constexpr int64_t kBatch = 128, kNoise = 8, kHeaps = 8;
constexpr double kSpread = 0.05, kPenalty = 0.1;

std::shared_ptr<Net> network(int64_t inputs, int64_t outputs) {
  const auto leaky = [] { return torch::nn::LeakyReLU(torch::nn::LeakyReLUOptions().negative_slope(0.2)); };
  return std::make_shared<Net>(torch::nn::Linear(inputs, 64), leaky(), torch::nn::Linear(64, 64), leaky(),
                               torch::nn::Linear(64, outputs));
}

at::Tensor centres() {
  const at::Tensor angle = torch::arange(kHeaps) * (2 * M_PI / kHeaps);
  return torch::stack({angle.cos(), angle.sin()}, 1);
}

at::Tensor real_points() {
  return centres().index_select(0, torch::randint(kHeaps, {kBatch})) + kSpread * torch::randn({kBatch, 2});
}

at::Tensor noise(int64_t count = kBatch) { return torch::randn({count, kNoise}); }

// Scores of real points shall be high and those of generated ones low; and the score shall be flat around real points
// (R1), which keeps the generator from running from heap to heap.
at::Tensor discriminator_loss(Net& discriminator, Net& generator, const duet::Batch& batch) {
  const at::Tensor real = batch["real"].detach().requires_grad_();
  at::Tensor fake;
  {
    const at::NoGradGuard not_its_turn;
    fake = generator.forward(batch["noise"]);
  }
  const at::Tensor score = discriminator.forward(real);
  const at::Tensor slope = torch::autograd::grad({score.sum()}, {real}, {}, {}, /*create_graph=*/true)[0];
  const at::Tensor penalty = slope.square().sum(1).mean();
  return torch::softplus(-score).mean() + torch::softplus(discriminator.forward(fake)).mean() + kPenalty / 2 * penalty;
}

// `allow_untrained`: the loss reaches parameters of the other network, which get no gradient from this trainer.
duet::TrainerOptions options() {
  return {.optimizer = duet::Adam{.lr = 1e-3, .betas = {0.5, 0.99}}, .allow_untrained = true};
}

int main(int argc, char** argv) {
  const duet::Mode mode = duet::parse_mode(argc > 1 ? argv[1] : "graph");
  const int64_t steps = argc > 2 ? std::stoll(argv[2]) : 3000;
  torch::set_num_threads(1);
  duet::seed_all(0);
  const auto generator = network(kNoise, 2), discriminator = network(2, 1);

  auto judge = duet::make_task(discriminator, [generator](Net& own, const duet::Batch& batch) {
    return discriminator_loss(own, *generator, batch);
  });
  auto generate = duet::make_task(
      generator, [](Net& own, const duet::Batch& batch) { return own.forward(batch["noise"]); },
      [discriminator](const at::Tensor& fake, const duet::Batch&) {
        return torch::softplus(-discriminator->forward(fake)).mean();
      });
  const auto judge_trainer = duet::make_trainer(mode, std::move(judge), options());
  const auto trainer = duet::make_trainer(mode, std::move(generate), options());

  const std::clock_t start = std::clock();
  for (int64_t step = 1; step <= steps; ++step) {
    const at::Tensor judged = judge_trainer->step({{"real", real_points()}, {"noise", noise()}}).loss;
    const at::Tensor fooled = trainer->step({{"noise", noise()}}).loss;
    if (step % 500 == 0) {
      std::cout << "step " << step << ", losses " << judged.item<float>() << " and " << fooled.item<float>() << "\n";
    }
  }
  const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  judge_trainer->finish();
  trainer->finish();

  const at::Tensor points = trainer->predict({{"noise", noise(2000)}})["prediction"].cpu();
  const auto [distance, nearest] = torch::cdist(points, centres()).min(1);
  const at::Tensor in_heap = distance < 4 * kSpread;
  const at::Tensor counts = nearest.masked_select(in_heap).bincount({}, kHeaps);
  std::cout << (counts >= 50).sum().item<int64_t>() << " of " << kHeaps << " heaps found, "
            << 100 * in_heap.sum().item<int64_t>() / points.size(0) << "% of the points lie in one\n"
            << "CPU seconds: " << seconds << "\n"
            << "weights " << duet::weights_hash(trainer->weights()) << "\n";
}
