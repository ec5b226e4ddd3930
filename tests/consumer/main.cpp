// Three steps in both modes through the installed package: the losses are the same numbers and fall.

#include <cstdio>
#include <duet/duet.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>

namespace {

template <class Trainer>
std::vector<double> losses() {
  duet::seed_all(7);
  auto task = duet::make_task(torch::nn::Linear(4, 1), [](auto& model, const duet::Batch& batch) {
    return torch::mse_loss(model.forward(batch["x"]), batch["y"]);
  });
  duet::TrainerOptions options;
  options.optimizer = duet::AdamW{.lr = 0.1};
  options.device = "cpu";
  Trainer trainer(std::move(task), options);
  const duet::Batch batch{{"x", torch::ones({8, 4})}, {"y", torch::zeros({8, 1})}};
  std::vector<double> values;
  for (int step = 0; step < 3; ++step) values.push_back(trainer.step(batch).loss.template item<double>());
  return values;
}

}  // namespace

int main() {
  const std::vector<double> eager = losses<duet::EagerTrainer>();
  const std::vector<double> graph = losses<duet::GraphTrainer>();
  std::printf("eager %.9g %.9g %.9g\ngraph %.9g %.9g %.9g\n", eager[0], eager[1], eager[2], graph[0], graph[1],
              graph[2]);
  return eager == graph && eager[2] < eager[0] ? 0 : 1;
}
