#pragma once

#include <cstdint>
#include <string>
#include <vector>
#include "base/state_dict.h"
#include "checkpoint/checkpoint.h"
#include "core/detail/step_executor.h"
#include "core/task.h"
#include "core/train_context.h"
#include "data/data_source.h"
#include "distributed/communicator.h"

namespace duet {

class HookList;
class TrainStep;

// Everything that a bit-exact resume needs: weights, optimizer, random numbers, hooks, the position in the data,
// counters and the latest loss. A trainer's checkpoint is its state_dict().
class RunState : public Stateful {
 public:
  RunState(TrainStep& step, HookList& hooks, TrainContext& context) : step_(step), hooks_(hooks), context_(context) {}

  // Its tensors are the live ones, not copies.
  StateDict state_dict() const override;
  // Of this rank. Throws CheckpointError for a state that does not fit, hooks' parts included; some parts may have
  // taken theirs by then, which restore() takes back.
  void load_state_dict(const StateDict& state) override;
  // Back to a copy of what state_dict() gave before.
  void restore(const StateDict& before);
  void restore_but_hooks(const StateDict& before);
  // Calls before_train_epoch of hooks without state, for what they set that no checkpoint holds: what they do to what
  // it holds was done when the epoch began, and is taken back.
  void begin_epoch_again();
  // The data go on at `position`, which none of the others does: a rollback goes on with the data that comes next.
  void move_data(const StateDict& position);

  // Parameters and buffers by the task's names; live.
  StateDict weights() const;

  // The source that training reads, put where a loaded state left off. Its position stays known when it is released.
  void attach(DataSource& data);
  void release();
  bool is_attached() const { return data_ != nullptr; }

  at::Tensor loss{};            // 0-dim, of the latest step
  int64_t validated_step = -1;  // after which the last validation by interval was complete

 private:
  void load_counters(const StateDict& state);

  TrainStep& step_;
  HookList& hooks_;
  TrainContext& context_;
  DataSource* data_ = nullptr;
  StateDict position_;  // of the data, while no source is attached
};

// A copy of what an evaluation may change of a trainer's state: random numbers and buffers.
class StateBeforeEvaluation {
 public:
  explicit StateBeforeEvaluation(const Task& task);
  void put_back() const;

 private:
  StateDict random_;
  NamedTensors buffers_, copies_;
};

// What only some ranks have of a trainer's state: each its own random numbers, and buffers where each keeps its own.

// Makes the others' part of the state that rank 0 saves: the generators of rank r are "random" for r = 0 and
// "random_ranks.r" for the others; "buffers_ranks.r" holds what rank r has other than rank 0, by its name in the whole
// state. All ranks call it.
void add_rank_state(StateDict& state, Task& task, Communicator& ranks);

// The state of this rank in what add_rank_state() made. Saved by another number of ranks, all take rank 0's buffers,
// and the generators of all ranks but 0 are seeded from rank 0's seed, the step and the rank.
StateDict own_rank_state(const StateDict& saved, const Communicator& ranks);

// The state with this run's numbers of the optimizer where `own`, the state of a trainer that has loaded nothing, was
// configured with others.
StateDict with_numbers_of(StateDict state, const StateDict& own);

// What CheckpointStore::read() gives on rank 0, on all ranks. All of them call it.
LoadedCheckpoint read_on_main(Communicator& ranks, const std::string& path);

// The checkpoint that RunControl::request_rollback() says, for a run that has reason to go back; later ones are set
// aside. All ranks call it. Throws NonFiniteError if there is none.
LoadedCheckpoint read_rollback(const TrainContext& context);

// How a checkpoint is to be saved, see CheckpointStore.
struct SaveOptions {
  std::vector<std::string> keep{};
  std::vector<std::string> best{};
  bool in_background = false;
};

// Saves the trainer's state as the checkpoint of its step and returns the path. All ranks take part, rank 0 writes;
// an error of one, CheckpointError or SaveRefused, is thrown on all.
std::string save_checkpoint(CheckpointStore& store, TrainContext& context, const SaveOptions& options = {});
// Marks the checkpoints that the run has saved since the last step that is sound.
void mark_suspects(const CheckpointBranch& branch, const DoubtError& error);
// What `run` returns, and throws; they are marked if that is doubt.
template <class Run>
auto marking_suspects(const CheckpointBranch& branch, const Run& run) try {
  return run();
} catch (const DoubtError& error) {
  mark_suspects(branch, error);
  throw;
}

// Once a checkpoint is complete: hooks hear of it at after_save_checkpoint.
void tell_saved(const std::string& path, TrainContext& context);

}  // namespace duet
