#pragma once

#include "core/trainer.h"
#include "graph/graph_options.h"

#include <memory>
#include <string>

namespace duet {

// How steps are run.
enum class Mode {
  kEager,  // op by op: EagerTrainer, what one debugs with
  kGraph,  // captured and replayed: GraphTrainer, what one trains with
};

const char* to_string(Mode mode);
// "eager" or "graph", as on a command line. Throws ConfigError for anything else.
Mode parse_mode(const std::string& text);

// The trainer of that mode; `graph` is for Mode::kGraph alone. Throws what the trainers' constructors throw.
std::unique_ptr<BaseTrainer> make_trainer(Mode mode, std::unique_ptr<Task> task, const TrainerOptions& options = {},
                                          const GraphOptions& graph = {});

}  // namespace duet
