#pragma once

#include <string>
#include <unordered_map>
#include <vector>
#include <ATen/core/stack.h>
#include "core/train_context.h"
#include "graph/guards/generator_watch.h"
#include "graph/record/input_watch.h"
#include "graph/record/obstacle.h"
#include "graph/record/step_program.h"

namespace duet {

// Writes the calls of a step into a StepProgram and finds out why it cannot be replayed, if it cannot.
// It has a member for each kind of value and each obstacle of a call.
class ProgramWriter {
 public:
  // `parameters` name the place in the model at which something could not be recorded.
  ProgramWriter(const NamedTensors& parameters, bool strict);
  ProgramWriter(const ProgramWriter&) = delete;
  ProgramWriter& operator=(const ProgramWriter&) = delete;

  // The static inputs: a step that writes into them would not change the batches of later steps, and one that reads
  // them after it has written to memory that they share would read what that held before.
  void watch_inputs(const MicroBatches& lent, const MicroBatches& given) {
    bytes_at_hand_ += inputs_.watch(lent, given);
  }
  // What errors call these tensors from outside.
  void name_outside(const NamedTensors& tensors) { inputs_.name_outside(tensors); }

  void note_settings(const OpSettings& settings) { program_.settings = settings; }

  // From here on recording goes on after an obstacle, to find the others; `listener` hears of each.
  void collect_all_obstacles(const ObstacleListener& listener) { listener_ = listener; }
  bool tells_all() const { return listener_ != nullptr; }

  // Values that the host reads are written down where they can be computed before a step (can_be_read_before): somebody
  // sees to it then that they are the recorded ones. Otherwise each is an obstacle.
  void guard_reads() { guards_reads_ = true; }

  // A call that is about to run, with its arguments on top of the stack, and the same call afterwards, with its
  // results.
  struct Call {
    StepProgram::Op op;
    std::vector<at::Tensor> written;
  };
  Call before(const c10::OperatorHandle& op, const torch::jit::Stack& stack);
  void after(Call call, const torch::jit::Stack& stack);

  // Host code runs here, at every replay too.
  void add_split(SplitPoint point) { program_.splits.push_back({point, program_.ops.size()}); }

  void add_backward(BackwardPass pass) { program_.backward_passes.push_back(std::move(pass)); }

  // Host code that is not part of the step may have drawn random numbers.
  void note_random_state() { generator_.note(); }
  // The step ends here, or host code between its ops begins.
  void note_end();

  // Why the step cannot be recorded: op, place, way out; empty if it can.
  const std::string& failure() const { return failure_; }
  // `where`: in the model; empty: it is no op's. Throws GraphError if strict.
  void fail(const Obstacle& obstacle, const std::string& where = {});
  void throw_if_refused() const;

  // After the last call. `results` and nothing else of what the step made are to be referred to from here on: whatever
  // else still lives was kept by the user.
  void finish(const std::vector<at::Tensor>& results);
  const StepProgram& program() const { return program_; }

 protected:
  // That what runs now cannot be recorded, with its place in the model.
  void fail_here(const std::string& what, const std::string& way_out);
  // Of a tensor that an op has made or used: whether neither host code nor the op itself has its memory in hand.
  // Batches may be read by their address.
  bool has_no_host_alias(const at::Tensor& tensor) const;
  const InputWatch& inputs() const { return inputs_; }

 private:
  void check_write(const c10::OperatorHandle& op, const at::Tensor& tensor);
  bool runs_on_host(const c10::OperatorHandle& op, const torch::jit::Stack& stack) const;
  bool is_host_made(const at::Tensor& tensor) const;
  bool note_read(const c10::OperatorHandle& op, const torch::jit::Stack& stack);
  bool reads_constants_only(const c10::OperatorHandle& op, const torch::jit::Stack& stack) const;
  StepProgram::Slot read_slot(const c10::IValue& argument, bool overwritten, StepProgram::Op& op);
  int read(const at::Tensor& tensor, bool overwritten, StepProgram::Op& op);
  void check_memory(const at::Tensor& tensor, bool is_new, const ValueTable::Storage& storage);
  void use_constant(int storage, StepProgram::Op& op);
  bool is_lifted(int storage);
  void turn_into_clone(int storage, const c10::Storage& contents);
  void mark_written(StepProgram::Op& op, const std::vector<at::Tensor>& written);
  int add_result(const at::Tensor& tensor, bool on_host);
  void watch_generator();
  void find_constants();
  void find_versions();
  void find_kept(const std::vector<at::Tensor>& results);

  bool strict_;
  StepProgram program_;
  ValueTable& table_ = program_.table;
  std::string failure_;
  ObstacleListener listener_;
  bool guards_reads_ = false;
  int64_t bytes_at_hand_ = 0;  // of parameters and inputs
  std::string op_;             // that was looked at last, for the listener
  std::unordered_map<const c10::StorageImpl*, std::string> parameter_names_;
  InputWatch inputs_;
  std::string last_parameter_;                              // that was read
  GeneratorWatch generator_{std::vector<at::Generator>()};  // since the last random op
};

}  // namespace duet
