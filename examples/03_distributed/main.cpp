// One process: ./03_distributed     Four: torchrun --no-python --nproc-per-node 4 ./03_distributed     or mpirun, srun
#include <iostream>
#include <duet/duet.h>
#include <torch/torch.h>

struct Net : torch::nn::Module {
  torch::nn::Linear hidden = register_module("hidden", torch::nn::Linear(2, 32));
  torch::nn::Linear output = register_module("output", torch::nn::Linear(32, 2));
  at::Tensor forward(const at::Tensor& x) { return output(torch::tanh(hidden(x))); }
};

int main() {
  const auto ranks = duet::init_distributed();  // the processes that the launcher has started, or this one alone
  duet::seed_all(0);                            // the same model everywhere
  auto task = duet::make_task(std::make_shared<Net>(), [](Net& net, const duet::Batch& batch) {
    return torch::nn::functional::cross_entropy(net.forward(batch["point"]), batch["inside"]);
  });
  const at::Tensor point = torch::rand({4096, 2}) * 2 - 1;  // does it lie inside the circle?
  const auto points = std::make_shared<duet::TensorDataset>(
      duet::NamedTensors{{"point", point}, {"inside", (point.norm(2, 1) < 0.7).to(torch::kLong)}});
  // Every rank reads its part of the same order; 64 points a step, whatever the number of ranks.
  duet::DataLoader data(points, {.batch_size = 64 / ranks->world_size(), .shuffle = true});

  duet::TrainerOptions options;
  options.optimizer = duet::AdamW{.lr = 0.01};
  options.loop.max_epochs = 8;
  duet::EagerTrainer trainer(std::move(task), options);
  trainer.on(duet::HookPoint::kAfterTrainIter, [](duet::TrainContext& run) {
    if (!run.is_main || run.progress.step % 100 != 1) return;
    std::cout << "step " << run.progress.step << ", loss " << run.step.loss().item<float>()
              << "\n";  // of all ranks' points
  });
  trainer.train(data);
}
