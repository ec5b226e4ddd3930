#include <iostream>
#include <duet/duet.h>
#include <torch/torch.h>

struct Net : torch::nn::Module {
  torch::nn::Linear hidden = register_module("hidden", torch::nn::Linear(2, 32));
  torch::nn::Linear output = register_module("output", torch::nn::Linear(32, 2));
  at::Tensor forward(const at::Tensor& x) { return output(torch::tanh(hidden(x))); }
};

int main(int argc, char** argv) {
  duet::seed_all(0);
  auto task = duet::make_task(std::make_shared<Net>(), [](Net& net, const duet::Batch& batch) {
    return torch::nn::functional::cross_entropy(net.forward(batch["point"]), batch["inside"]);
  });
  const duet::Mode mode = duet::parse_mode(argc > 1 ? argv[1] : "graph");  // or eager: the same weights, bit for bit
  const auto trainer = duet::make_trainer(mode, std::move(task), {.optimizer = duet::AdamW{.lr = 0.01}});
  for (int step = 0; step <= 500; ++step) {
    const at::Tensor point = torch::rand({64, 2}) * 2 - 1;  // does it lie inside the circle?
    const duet::Batch batch{{"point", point}, {"inside", (point.norm(2, 1) < 0.7).to(torch::kLong)}};
    const at::Tensor loss = trainer->step(batch).loss;
    if (step % 100 == 0) std::cout << "step " << step << ", loss " << loss.item<float>() << "\n";
  }
}
