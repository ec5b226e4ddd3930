#include "benchmarks/hand_loop.h"
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <torch/optim/adamw.h>

namespace duet::benchmarks {

namespace {

std::vector<at::Tensor> parameters_of(const Task& task) {
  std::vector<at::Tensor> parameters;
  for (const auto& [name, tensor] : task.named_parameters()) parameters.push_back(tensor);
  return parameters;
}

}  // namespace

HandLoop::HandLoop(std::unique_ptr<Task> task)
    : task_(std::move(task)), parameters_(parameters_of(*task_)), step_count_(at::zeros({})) {
  task_->train(true);
  const c10::NoGradGuard no_grad;
  for (const at::Tensor& parameter : parameters_) {
    exp_avgs_.push_back(at::zeros_like(parameter));
    exp_avg_sqs_.push_back(at::zeros_like(parameter));
    step_counts_.push_back(step_count_);
  }
  gradients_.resize(parameters_.size());
}

at::Tensor HandLoop::step(const Batch& batch) {
  for (const at::Tensor& parameter : parameters_) parameter.mutable_grad().reset();
  const at::Tensor loss = task_->training_step(batch).loss;
  loss.backward();

  const c10::NoGradGuard no_grad;
  for (std::size_t i = 0; i < parameters_.size(); ++i) gradients_[i] = parameters_[i].grad();
  step_count_.add_(1);
  at::_fused_adamw_(parameters_, gradients_, exp_avgs_, exp_avg_sqs_, /*max_exp_avg_sqs=*/{}, step_counts_,
                    kLearningRate, /*beta1=*/0.9, /*beta2=*/0.999, kWeightDecay, /*eps=*/1e-8, /*amsgrad=*/false,
                    /*maximize=*/false);
  // A gradient that somebody else holds is copied, not taken over, by the next backward.
  for (at::Tensor& gradient : gradients_) gradient.reset();
  return loss.detach();
}

OptimLoop::OptimLoop(std::unique_ptr<Task> task) : task_(std::move(task)) {
  task_->train(true);
  const auto options = torch::optim::AdamWOptions(kLearningRate).weight_decay(kWeightDecay);
  optimizer_ = std::make_unique<torch::optim::AdamW>(parameters_of(*task_), options);
}

OptimLoop::~OptimLoop() = default;

at::Tensor OptimLoop::step(const Batch& batch) {
  optimizer_->zero_grad();
  const at::Tensor loss = task_->training_step(batch).loss;
  loss.backward();
  optimizer_->step();
  return loss.detach();
}

}  // namespace duet::benchmarks
