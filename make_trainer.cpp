#include "make_trainer.h"
#include "eager/eager_trainer.h"
#include "graph/detail/graph_executor.h"
#include "graph/graph_trainer.h"

namespace duet {

std::unique_ptr<BaseTrainer> make_trainer(Mode mode, std::unique_ptr<Task> task, const TrainerOptions& options,
                                          const GraphOptions& graph) {
  if (mode == Mode::kEager) {
    return std::make_unique<EagerTrainer>(std::move(task), options, graph_executor_with(graph));
  }
  return std::make_unique<GraphTrainer>(std::move(task), options, graph);
}

}  // namespace duet
