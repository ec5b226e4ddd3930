#pragma once

#include <memory>
#include "core/trainer.h"
#include "graph/graph_options.h"

namespace duet {

// The trainer of that mode: an EagerTrainer or a GraphTrainer. Either can change its mode (BaseTrainer::set_mode);
// `graph` is for graph mode. Throws what the trainers' constructors throw.
std::unique_ptr<BaseTrainer> make_trainer(Mode mode, std::unique_ptr<Task> task, const TrainerOptions& options = {},
                                          const GraphOptions& graph = {});

}  // namespace duet
