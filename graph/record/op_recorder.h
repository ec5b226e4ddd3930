#pragma once

#include <functional>
#include <optional>
#include <vector>
#include "base/detail/op_tap.h"
#include "graph/record/address_watch.h"
#include "graph/record/program_writer.h"

namespace duet {

// While it lives, every leaf ATen call of this thread is run as usual and written to a StepProgram.
//
// Only the memory's identity is kept while recording: a reference to a gradient would make autograd copy it instead of
// handing it over, and the recorded step would not be the one that runs.
class OpRecorder : public ProgramWriter, private OpListener {
 public:
  // With `strict`, what cannot be recorded throws GraphError at once: before the weights change, unless it lies in the
  // code of in_step.
  explicit OpRecorder(const NamedTensors& parameters, bool strict = false) : ProgramWriter(parameters, strict) {
    for (const auto& item : parameters) on_device_ = on_device_ || !item.second.is_cpu();
    if (!on_device_) note_settings(op_settings());
    tap_.emplace(static_cast<OpListener&>(*this));
  }

  // Runs `step`. TorchScript's interpreter turns what is thrown inside it into an error of its own: a refusal is thrown
  // again as what it was.
  void record(const std::function<void()>& step);

  // Of tensors from outside, from the step's beginning on: those that it makes or reads are watched anyway.
  void watch_addresses(const NamedTensors& tensors);

  // Host code runs between the two: its calls are not part of the step.
  void pause();
  void resume();

 private:
  void on_call(const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack* stack) override;

  bool before_backward(const at::Tensor& loss, const NamedTensors& parameters, const AutogradWatch& watch) override;
  void after_backward(const NamedTensors& parameters) override;
  std::optional<std::vector<int>> gradients_of(const NamedTensors& parameters) const;

  void note_addresses();
  void check_settings();
  void check_graph_of(const c10::OperatorHandle& op, const torch::jit::Stack& stack,
                      const std::vector<at::Tensor>& arguments);
  bool is_view_by_other_means(const c10::OperatorHandle& op, const torch::jit::Stack& stack) const;
  bool is_from_outside(const at::Tensor& tensor) const;
  void note_host_work(const c10::OperatorHandle& op, const torch::jit::Stack& stack);
  void run(const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack* stack);

  bool on_device_ = false;
  bool paused_ = false;
  std::string thrown_;                // the op that threw last
  std::optional<BackwardPass> pass_;  // that runs
  AddressWatch addresses_;
  std::optional<OpTap> tap_;  // goes first
};

}  // namespace duet
