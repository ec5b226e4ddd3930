#include "core/detail/group_checkpoint.h"
#include "distributed/communicator.h"

namespace duet {

std::string save_checkpoint(CheckpointStore& store, const TrainContext& context, const std::vector<std::string>& keep,
                            CheckpointRank rank) {
  const StateDict state = context.checkpoint_state();
  std::string path;
  run_on_main(*context.communicator, [&] { path = store.save(context.progress.step, state, keep, rank); });
  return context.communicator->broadcast(path);
}

}  // namespace duet
