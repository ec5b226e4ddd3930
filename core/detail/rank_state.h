#pragma once

#include <string>
#include <vector>
#include "base/state_dict.h"
#include "checkpoint/checkpoint.h"
#include "core/task.h"
#include "core/train_context.h"
#include "distributed/communicator.h"

namespace duet {

// What only some ranks have of a trainer's state: each its own random numbers, and buffers where each keeps its own.

// Makes the others' part of the state that rank 0 saves: the generators of rank r are "random" for r = 0 and
// "random_ranks.r" for the others; "buffers_ranks.r" holds what rank r has other than rank 0, by its name in the whole
// state. All ranks call it.
void add_rank_state(StateDict& state, Task& task, Communicator& ranks);

// The state of this rank in what add_rank_state() made. Saved by another number of ranks, all take rank 0's buffers,
// and the generators of all ranks but 0 are seeded from rank 0's seed, the step and the rank.
StateDict own_rank_state(const StateDict& saved, const Communicator& ranks);

struct DifferentRank {
  std::size_t rank = 0;
  std::string parameter{};  // the first one whose values differ from rank 0's; empty: there is none
};
// All ranks call it.
DifferentRank find_rank_with_other_weights(Task& task, Communicator& ranks);

// Saves the trainer's state as the checkpoint of its step and returns the path. All ranks take part, rank 0 writes;
// an error of one, CheckpointError or SaveRefused, is thrown on all.
std::string save_checkpoint(CheckpointStore& store, const TrainContext& context,
                            const std::vector<std::string>& keep = {}, CheckpointRank rank = CheckpointRank::kAny);

}  // namespace duet
