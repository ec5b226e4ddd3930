#pragma once

#include <string>
#include <vector>
#include "checkpoint/checkpoint.h"
#include "core/train_context.h"

namespace duet {

// Saves the trainer's state as the checkpoint of its step and returns the path. All ranks take part, rank 0 writes;
// an error of one, CheckpointError or SaveRefused, is thrown on all.
std::string save_checkpoint(CheckpointStore& store, const TrainContext& context,
                            const std::vector<std::string>& keep = {}, CheckpointRank rank = CheckpointRank::kAny);

}  // namespace duet
