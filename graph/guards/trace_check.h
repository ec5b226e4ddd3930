#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>
#include "base/batch.h"
#include "base/detail/op_tap.h"
#include "graph/guards/generator_watch.h"
#include "graph/guards/step_memory.h"
#include "graph/record/step_program.h"

namespace duet {

// Does the host code still do what was recorded? Runs it, with dispatch and autograd but without kernels, and compares
// every call with the recording: op, numbers, which tensors, constants made on the host, random draws; of a backward
// pass that LibTorch's own code runs alone the graph instead (BackwardPass). The tensors that the code gets have shapes
// but no memory (shadow_storage.h). Counters, generators and caches of the user's code advance as in an eager step.
//
// At the first difference what was recorded up to there is run, with all memory in place, and the step goes on op by
// op: the host code runs once and the result is that of an eager step.
// Its many members are a place in the recording and the ways in which a call can leave it.
class TraceCheck : private OpListener {
 public:
  enum class Outcome {
    kSame,        // the recording may be replayed; nothing has run yet
    kDiffers,     // the step has run op by op
    kLeft,        // a split point was passed, from which the step is to go on op by op; difference() may say why
    kUnreadable,  // host code asked for a tensor's address or drew random numbers, so nobody knows: nothing has run
  };

  explicit TraceCheck(std::shared_ptr<const StepProgram> recording);

  // A step over the recording's inputs; gives its results, gradients among them, each of which is held at one place
  // besides (ResultReferences).
  using HostCode = std::function<std::vector<at::Tensor>()>;
  // What the caller of run() does in the middle of it.
  struct Callbacks {
    // Passes a split point: what was recorded up to there runs, then the hooks. False if they have put other gradients
    // in place. From there on nothing can run from the start of the step: at a difference it is kLeft.
    std::function<bool(std::size_t split)> pass_split{};
    // Says whether the n-th value that host code reads (StepProgram::reads) is the recorded one; null: it is.
    std::function<bool(std::size_t read)> read_holds{};
    // Says whether nobody has let go of memory from outside, so that another in its place may be there for long; null:
    // somebody has.
    std::function<bool(const c10::StorageImpl* memory)> is_kept{};
  };
  Outcome run(const HostCode& host_code, const Callbacks& callbacks);
  // The same between steps: at a difference it stops, and nothing runs.
  bool still_same(const HostCode& host_code);
  // Compares a step that runs op by op anyway.
  bool follow(const HostCode& host_code);
  // The same for one that a device captures meanwhile: `run_op` runs each of its ops.
  using RunOp =
      std::function<void(const c10::OperatorHandle& op, torch::jit::Stack& stack, const std::function<void()>& run)>;
  bool follow_capture(const HostCode& host_code, RunOp run_op);

  // By the host code, before its step: the tensor is what it gets for an input of the recording.
  void lend(int storage, const at::Tensor& tensor) { memory_.see(storage, tensor.storage().unsafeGetStorageImpl()); }
  // By the host code, after its step: how the inputs get their values where it has let go of what was lent.
  void bring_inputs_by(std::function<void()> bring) { bring_inputs_ = std::move(bring); }
  // By the host code at a split point, instead of its hooks: they are called in a step that runs op by op.
  void split(SplitPoint point, const NamedTensors& parameters, const std::function<void()>& hooks);

  // By the host code, after its step: a result has another name than the recorded one.
  void rename(const std::string& result);

  // Where in the model the host code is, or was when it ended: ", after 'encoder.weight'".
  std::string place() const;

  // After run(): what differs, and where; or what could not be read.
  const std::string& difference() const { return difference_; }

  // After kLeft: what the user's code threw after a split point; null: nothing.
  const std::exception_ptr& thrown() const { return thrown_; }

  // After any but kSame: because of random numbers, which another thread may have drawn.
  bool host_used_rng() const { return host_used_rng_; }

  // After kDiffers because of a tensor from outside that is another one than the recorded one: where it is read.
  const std::optional<StepProgram::Place>& changed_tensor() const { return changed_tensor_; }
  // Whether something else differs as well, or is a number, which nobody lets go of: it may have been so for long.
  bool differs_further() const { return differs_further_; }

  // After kSame: the tensors from outside that are others from step to step, and what somebody keeps of the step.
  StepMemory& memory() { return memory_; }
  void bring_kept(const StepMemory::MemoryOf& memory_of) const { memory_.bring_kept(memory_of, own_gradients_); }

 private:
  enum class State { kComparing, kByOp };
  struct KnownOp {
    std::vector<int> returned;  // by result: the argument that it is; -1: none
    std::vector<int> written;   // storages
    bool of_single_numbers, changes_view, may_multiply;
  };
  // Autograd hands on nothing but std::exception.
  struct HostDrew : std::exception {};  // through host code: what it drew is not what it gets where random ops run

  void on_call(const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack* stack) override;
  bool before_backward(const at::Tensor& loss, const NamedTensors& parameters, const AutogradWatch& watch) override;
  void run_by_op(const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack* stack,
                 const std::function<void()>& run);
  bool may_run(std::size_t index, const torch::jit::Stack& stack) const;
  void start();
  void end(const std::vector<at::Tensor>& results);

  bool matches(const c10::OperatorHandle& op, c10::DispatchKeySet below, const torch::jit::Stack& stack);
  std::string other_call(const c10::OperatorHandle& op, c10::DispatchKeySet below, const torch::jit::Stack& stack);
  std::string other_argument(const StepProgram::Slot& slot, std::size_t index, const c10::IValue& argument);
  std::string other_tensor(int value, const at::Tensor& tensor, StepProgram::Place place);
  bool same_read();
  bool was_let_go(int storage) const {  // in the place of which another tensor is new
    const ValueTable::Storage& recorded = recording_->table.storages()[storage];
    const auto& is_kept = callbacks_->is_kept;
    return !recorded.local && !(is_kept && is_kept(recorded.strong.unsafeGetStorageImpl()));
  }
  void differ(std::string what);
  bool differs(std::string what) { return differ(std::move(what)), false; }
  void differ_by_draws();
  void go_on_by_op();
  void pass_split(std::size_t split, const NamedTensors& parameters);
  bool host_draws() const { return generators_.moved(); }
  // It then draws other numbers than after the random ops that are left out.
  bool skips_what_host_draws() const { return kernels_ == Kernels::kSkipped && host_draws(); }
  Outcome unreadable(const std::string& why);

  void answer(std::size_t index, torch::jit::Stack* stack);
  void resize_outputs(const StepProgram::Op& recorded, const torch::jit::Stack& stack);
  void adopt(std::size_t index, const torch::jit::Stack& stack);

  std::shared_ptr<const StepProgram> recording_;
  std::vector<KnownOp> ops_;
  StepMemory memory_;
  GeneratorWatch generators_;
  RunOp run_op_;  // null: no device captures

  // Of the current run.
  const Callbacks* callbacks_ = nullptr;
  std::function<void()> bring_inputs_;
  std::optional<StepProgram::Place> changed_tensor_;
  bool differs_further_ = false;
  bool follows_ = false;  // by op, past a tensor that is another one
  State state_ = State::kComparing;
  enum class Kernels { kSkipped, kRun } kernels_ = Kernels::kSkipped;
  bool host_used_rng_ = false;
  bool stops_ = false;       // at the first difference
  bool unreadable_ = false;  // while something runs on tensors without memory
  bool paused_ = false;      // while hooks act
  bool passed_ = false;      // a split point, by pass_split_
  bool left_ = false;        // nothing more of the host code is to run
  bool profiled_ = false;    // by whoever called run()
  std::size_t cursor_ = 0;   // ops that were the same
  std::size_t splits_passed_ = 0;
  std::string difference_;
  std::exception_ptr thrown_;
  std::vector<at::Tensor> own_gradients_;  // of the host code, while a split point is passed
};

}  // namespace duet
