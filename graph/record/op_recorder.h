#pragma once

#include <functional>
#include <mutex>
#include "graph/record/program_writer.h"

namespace duet {

// While it lives, every leaf ATen call of this thread (and of autograd's threads that work for it) is run as usual and
// written to a StepProgram. One at a time per process.
//
// It sits on DispatchKey::Fake, which LibTorch 2.11 leaves free: below autograd, autocast and composite ops, above the
// backends. Only the memory's identity is kept while recording: a reference to a gradient would make autograd copy it
// instead of handing it over, and the recorded step would not be the one that runs.
class OpRecorder : public ProgramWriter {
 public:
  // With `strict`, what cannot be recorded throws GraphError at once: before the weights change, unless it lies in the
  // code of in_step.
  explicit OpRecorder(const NamedTensors& parameters, bool strict = false);
  ~OpRecorder();

  // Runs `step`. TorchScript's interpreter turns what is thrown inside it into an error of its own: a refusal is thrown
  // again as what it was.
  void record(const std::function<void()>& step);

  // Host code runs between the two: its calls are not part of the step.
  void pause();
  void resume();

  // Throws GraphError if this LibTorch does not route calls through the recorder's key.
  static void self_check();

 private:
  static void register_fallback();
  static void on_call(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

  std::unique_lock<std::mutex> capture_lock_;
};

}  // namespace duet
