// A hook of your own: watches the gradient norm, keeps what it knows in checkpoints, and ends the training once the
// norm stays small. It works the same in both modes, and costs one read of the device every `interval` steps.
//
// run:      build/release/examples/02_own_hook
// expected: lines "step 50, gradient norm 1.9" with a falling norm, then "stopped at step 650: ..." or so

#include <iostream>
#include <duet/duet.h>
#include <torch/torch.h>

class StopWhenFlat : public duet::Hook {
 public:
  StopWhenFlat(int64_t interval, double threshold) : interval_(interval), threshold_(threshold) {}

  std::string name() const override { return "StopWhenFlat"; }

  void after_train_iter(duet::TrainContext& run) override {
    // Gradients are clipped below, so the step knows their norm; a tensor stays on the device until it is read.
    if (run.progress.step % interval_ != 0) return;
    norm_ = run.step.result->grad_norm.item<double>();
    std::cout << "step " << run.progress.step << ", gradient norm " << norm_ << "\n";
    if (norm_ < threshold_) run.control.request_stop("the gradient is flat");
  }

  // What a resumed run must know.
  duet::StateDict state_dict() const override {
    duet::StateDict state;
    state.set("norm", norm_);
    return state;
  }
  void load_state_dict(const duet::StateDict& state) override { norm_ = state.number("norm"); }

 private:
  const int64_t interval_;
  const double threshold_;
  double norm_ = 0;
};

// A line with noise: 1024 points of y = 3 x1 - 2 x2 + 0.5.
duet::DataLoader make_data() {
  const at::Tensor x = torch::randn({1024, 2});
  const at::Tensor y = torch::mv(x, torch::tensor({3.0F, -2.0F})) + 0.5;
  auto dataset = std::make_shared<duet::TensorDataset>(duet::NamedTensors{{"x", x}, {"y", y}});
  auto sampler = std::make_unique<duet::EpochSampler>(dataset->size(), /*shuffle=*/true, /*seed=*/0);
  return {dataset, std::move(sampler), {.batch_size = 64}};
}

int main() {
  duet::seed_all(0);
  auto task = duet::make_task(torch::nn::Linear(2, 1), [](auto& model, const duet::Batch& batch) {
    return torch::mse_loss(model.forward(batch["x"]).squeeze(1), batch["y"]);
  });
  duet::TrainerOptions options;
  options.optimizer = duet::SGD{.lr = 0.01};
  options.clip_grad = duet::ClipNorm{.max_norm = 10.0};
  options.loop.max_steps = 5000;
  duet::EagerTrainer trainer(std::move(task), options);
  trainer.add_hook(std::make_unique<StopWhenFlat>(/*interval=*/50, /*threshold=*/0.01));
  duet::DataLoader data = make_data();
  trainer.train(data);
  std::cout << "stopped at step " << trainer.progress().step << ": " << trainer.stop_reason() << "\n";
}
