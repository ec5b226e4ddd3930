#include "make_trainer.h"

#include "base/error.h"
#include "eager/eager_trainer.h"
#include "graph/graph_trainer.h"

namespace duet {

const char* to_string(Mode mode) { return mode == Mode::kEager ? "eager" : "graph"; }

Mode parse_mode(const std::string& text) {
  for (const Mode mode : {Mode::kEager, Mode::kGraph}) {
    if (text == to_string(mode)) return mode;
  }
  throw ConfigError("[parse_mode] found mode '" + text + "', expected eager or graph; correct the call");
}

std::unique_ptr<BaseTrainer> make_trainer(Mode mode, std::unique_ptr<Task> task, const TrainerOptions& options,
                                          const GraphOptions& graph) {
  if (mode == Mode::kEager) return std::make_unique<EagerTrainer>(std::move(task), options);
  return std::make_unique<GraphTrainer>(std::move(task), options, graph);
}

}  // namespace duet
