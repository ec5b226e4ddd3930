#pragma once

#include <functional>
#include <memory>
#include <unordered_set>
#include <vector>
#include <ATen/core/stack.h>
#include "graph/record/step_program.h"

namespace duet {

// Which memory stands for which storage of a recording while a step's host code runs (TraceCheck).
class StepMemory {
 public:
  explicit StepMemory(std::shared_ptr<const StepProgram> recording);
  // Of a new run. `ops_run`: so do the ops that the host code calls.
  void start(bool ops_run);

  // From now on `memory` is what the recording calls by that storage.
  void see(int storage, c10::StorageImpl* memory);

  // Whether the tensor is the recorded value. `of_others`: a tensor from outside that the host code has chosen.
  bool is_same(const ValueTable::Value& recorded, const at::Tensor& tensor);
  // Whether these are the recorded results, in their order.
  bool are_results(const std::vector<at::Tensor>& results);
  bool is_from_outside(int storage) const;
  // Whether these constants hold what they held in the recorded step. `captured`: by a device, whose memory a capture
  // cannot look into, and holds what fills it there.
  bool hold_the_same(const std::vector<int>& constants, bool captured) const;

  // The value for the host code, out of that op: over memory that it makes, or over what is there.
  at::Tensor hand_out(int value, std::size_t op);
  // An op that is not run writes to the storage: what lies in its memory is not what the host code should read.
  void mark_stale(int storage);
  // What was left behind may be read again: the step goes on op by op, or has ended.
  void release();
  // Whether the tensor's memory holds what it holds in a step that runs.
  bool is_there(const at::Tensor& tensor) const;
  // Whether the op lays an empty tensor of the step over other memory (laid_over_memory), which is not recorded.
  bool is_view_by_other_means(const c10::OperatorHandle& op, const torch::jit::Stack& stack) const;

  // Whether a tensor that was accepted for what it holds still lives: then it is no number of the step alone.
  bool local_outlives_step() const;
  // Whether somebody keeps memory of the step that nobody kept when it was recorded. `results`: as ResultReferences
  // takes them.
  bool is_kept_by_others(const std::vector<at::Tensor>& results) const;

  // By storage, to run the recorded ops on.
  std::vector<c10::Storage> all() const;

  using MemoryOf = std::function<c10::Storage(int storage)>;

  // The tensors from outside that are others from step to step: their values go into the memory that stands for them in
  // a run, and what the step has written there comes back.
  void bring_bound(const MemoryOf& memory_of) const;
  void take_bound(const MemoryOf& memory_of) const;
  // Whether a run has made of them what they hold now.
  bool bound_are_same(const MemoryOf& memory_of) const;

  // Gives memory without any to which somebody refers copies of what the program makes in the ops before `op`.
  void fill_kept(std::size_t op, const MemoryOf& memory_of);
  // The other way: what those who refer to it have made of such memory since; that of `except` left out.
  void bring_kept(const MemoryOf& memory_of, const std::vector<at::Tensor>& except) const;
  // What fill_kept() gave these goes: they stand again for tensors of a step that does not run.
  void empty(const std::vector<at::Tensor>& tensors);

 private:
  struct Bound {
    int storage;
    c10::Storage memory;
    c10::Storage before;  // a copy, where the step itself writes to it meanwhile
  };
  using Weak = c10::weak_intrusive_ptr<c10::StorageImpl>;
  bool bind(int storage, const c10::Storage& memory);
  bool is_same_local(const ValueTable::Value& recorded, const at::Tensor& tensor);
  const c10::Storage& outside(int storage) const;

  std::shared_ptr<const StepProgram> recording_;
  const ValueTable& table_;
  std::vector<at::Tensor> prototypes_;  // by value: shape and dtype of what is handed out
  std::vector<bool> written_;           // by storage: from outside, and an op writes to it
  std::vector<bool> copied_;            // by storage: an op changes a copy of it that stands for it

  // Of the current run.
  std::vector<Weak> seen_;                             // by storage: the memory that the host code got
  std::unordered_set<c10::StorageImpl*> left_behind_;  // memory from outside, locked
  std::vector<bool> filled_;                           // by fill_kept()
  std::vector<Weak> locals_;                           // that were accepted for what they hold
  std::vector<Bound> bound_;
  bool ops_run_ = false;
};

// Whether shape, strides, offset and dtype are the recorded ones.
bool is_same_place(const ValueTable::Value& recorded, const at::Tensor& now);

}  // namespace duet
