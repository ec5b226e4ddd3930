#include "graph/graph_trainer.h"
#include "core/detail/train_step.h"
#include "graph/detail/graph_executor.h"

namespace duet {

GraphTrainer::GraphTrainer(std::unique_ptr<Task> task, const TrainerOptions& options, const GraphOptions& graph)
    : BaseTrainer(std::move(task), options, [&graph](TrainStep& step, at::Device device) {
        check_options(graph);
        return std::make_unique<GraphExecutor>(step, device, graph);
      }) {}

GraphExecutor& GraphTrainer::graph() const { return static_cast<GraphExecutor&>(executor()); }

std::vector<SignatureReport> GraphTrainer::report() const { return graph().report(); }

int64_t GraphTrainer::eager_steps() const { return graph().eager_steps(); }

int64_t GraphTrainer::replays() const { return graph().replays(); }

std::string GraphTrainer::program_text() const { return graph().program_text(); }

}  // namespace duet
