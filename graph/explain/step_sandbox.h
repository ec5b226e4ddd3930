#pragma once

#include <functional>
#include <unordered_set>
#include <utility>
#include <vector>
#include "base/detail/op_tap.h"
#include "base/state_dict.h"
#include "core/detail/train_step.h"
#include "graph/guards/state_copies.h"

namespace duet {

// Lets steps run without training: each from the state that there was when the sandbox was made, which is back when it
// goes. That is what the trainer knows, by name, and every other tensor and generator that a watched step changes.
class StepSandbox : private OpListener {
 public:
  explicit StepSandbox(TrainStep& step);
  ~StepSandbox() override;
  StepSandbox(const StepSandbox&) = delete;
  StepSandbox& operator=(const StepSandbox&) = delete;

  // Runs `code`, a step op by op, and notes what else it changes.
  void watch(const std::function<void()>& code);
  // Tensors and generators alone, in place: what was recorded refers to them. A hyper-parameter that was set stays so.
  void restore();

 private:
  void on_call(const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack* stack) override;
  void look_at(const at::Tensor& tensor, bool written);
  void restore_host_side();

  TrainStep& step_;
  StateDict saved_;  // copies, by name
  Gradients gradients_;
  RandomStates random_;
  std::vector<std::pair<at::Tensor, at::Tensor>> others_;  // bytes of a storage, and a copy
  std::unordered_set<const c10::StorageImpl*> known_;      // in one of the two, or never written
  std::unordered_set<const c10::StorageImpl*> before_;     // that the watched step has seen and not made
  std::unordered_set<const c10::StorageImpl*> made_;       // by it
};

}  // namespace duet
