#pragma once

#include "base/batch.h"
#include "graph/record/tape.h"

#include <functional>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

namespace duet {

// While it lives, every leaf ATen call of this thread (and of autograd's threads that work for it) is run as usual and
// written to a tape. One at a time per process.
//
// It sits on DispatchKey::Fake, which LibTorch 2.11 leaves free: below autograd, autocast and composite ops, above the
// backends. Only the memory's identity is kept while recording: a reference to a gradient would make autograd copy it
// instead of handing it over, and the recorded step would not be the one that runs.
class OpRecorder {
 public:
  // `parameters` name the place in the model at which something could not be recorded; with `strict` that throws
  // GraphError at once: before the weights change, unless it lies in the code of in_step.
  explicit OpRecorder(const NamedTensors& parameters, bool strict = false);
  ~OpRecorder();
  OpRecorder(const OpRecorder&) = delete;
  OpRecorder& operator=(const OpRecorder&) = delete;

  // Names the static inputs: a step that writes into them would not change the batches of later steps.
  void watch_inputs(const MicroBatches& micro_batches);

  // Runs `step`. TorchScript's interpreter turns what is thrown inside it into an error of its own: a refusal is thrown
  // anew.
  void watch(const std::function<void()>& step);

  // Host code runs between the two: its calls are not part of the step.
  void pause();
  void resume();
  // Marks that host code runs here, at every replay again.
  void mark_split_point() { tape_.split_points.push_back(tape_.ops.size()); }

  // Why the step cannot be recorded: op, place, way out; empty if it can.
  const std::string& failure() const { return failure_; }
  void fail(const std::string& reason);

  const Tape& tape() const { return tape_; }

  // Throws GraphError if this LibTorch does not route calls through the recorder's key.
  static void self_check();

 private:
  friend void record_op(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

  [[noreturn]] void refuse() const;
  void check(const c10::OperatorHandle& op, const torch::jit::Stack& arguments);
  void check_write(const c10::OperatorHandle& op, const at::Tensor& tensor);
  Tape::Slot read_slot(const c10::IValue& argument, bool overwritten);
  Tape::Slot result_slot(const c10::IValue& result, bool empty_like);
  int read(const at::Tensor& tensor, bool overwritten = false);
  void make_private(int storage);
  int place(const at::Tensor& tensor, int storage, bool keep);
  int storage_index(const at::Tensor& tensor, int producer);
  void mark_written(Tape::Op& entry, const std::vector<at::Tensor>& written);
  std::string where() const;

  std::unique_lock<std::mutex> capture_lock_;
  bool strict_;
  Tape tape_;
  std::string failure_;
  std::unordered_map<const c10::StorageImpl*, std::string> parameter_names_;
  std::unordered_map<const c10::StorageImpl*, std::string> input_names_;
  std::string last_parameter_;
};

}  // namespace duet
