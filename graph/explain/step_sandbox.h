#pragma once

#include <functional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>
#include "base/detail/op_tap.h"
#include "base/state_dict.h"
#include "core/detail/train_step.h"
#include "graph/guards/state_copies.h"

namespace duet {

// Saves, before an op of a watched step writes into it, every tensor that was there before the step, and the state of
// every generator that the step draws from: those that the trainer does not know of.
class ForeignState : private OpListener {
 public:
  // `known`: memory that somebody else saves.
  explicit ForeignState(const NamedTensors& known);

  void watch(const std::function<void()>& step);
  void restore();

 private:
  void on_call(const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack* stack) override;
  void look_at(const at::Tensor& tensor, bool written);

  std::unordered_set<const c10::StorageImpl*> known_;     // saved here or elsewhere, or never written
  std::unordered_set<const c10::StorageImpl*> before_;    // that the step has seen and not made
  std::unordered_set<const c10::StorageImpl*> made_;      // by the step
  std::vector<std::pair<at::Tensor, at::Tensor>> saved_;  // bytes of a storage, and a copy
  RandomStates random_;
};

// Lets steps run without training: each from the state that there was when the sandbox was made, which is back when it
// goes.
class StepSandbox {
 public:
  explicit StepSandbox(TrainStep& step);
  ~StepSandbox();
  StepSandbox(const StepSandbox&) = delete;
  StepSandbox& operator=(const StepSandbox&) = delete;

  // Runs `code`, a step op by op, and notes what else it changes.
  void watch(const std::function<void()>& code) { foreign_.watch(code); }
  // Tensors and generators alone, in place: what was recorded refers to them. A hyper-parameter that was set stays so.
  void restore();

 private:
  void restore_host_side();

  TrainStep& step_;
  StateDict saved_;  // copies, by name
  Gradients gradients_;
  ForeignState foreign_;
};

}  // namespace duet
