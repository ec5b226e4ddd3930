#pragma once

#include <memory>
#include <vector>
#include "core/task.h"

namespace torch::optim {
class AdamW;
}

namespace duet::benchmarks {

inline constexpr double kLearningRate = 1e-3;
inline constexpr double kWeightDecay = 0.01;

// One step as an expert writes it with LibTorch alone: gradients dropped and not zeroed, backward, ATen's fused AdamW
// over all parameters with one shared step counter. Only the forward pass comes from the Task, so that every contestant
// runs the same kernels.
class HandLoop {
 public:
  explicit HandLoop(std::unique_ptr<Task> task);
  at::Tensor step(const Batch& batch);

 private:
  std::unique_ptr<Task> task_;
  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> exp_avgs_;
  std::vector<at::Tensor> exp_avg_sqs_;
  at::Tensor step_count_;
  std::vector<at::Tensor> step_counts_;  // step_count_, once per parameter
  std::vector<at::Tensor> gradients_;
};

// The same with torch::optim::AdamW, as LibTorch's documentation writes it.
class OptimLoop {
 public:
  explicit OptimLoop(std::unique_ptr<Task> task);
  ~OptimLoop();
  at::Tensor step(const Batch& batch);

 private:
  std::unique_ptr<Task> task_;
  std::unique_ptr<torch::optim::AdamW> optimizer_;
};

}  // namespace duet::benchmarks
