#include "graph/graph_trainer.h"
#include "base/device.h"
#include "graph/detail/graph_executor.h"

namespace duet {

GraphTrainer::GraphTrainer(std::unique_ptr<Task> task, const TrainerOptions& options, const GraphOptions& graph)
    : GraphTrainer(std::move(task), options, graph,
                   (options.validate(), graph.validate(), parse_device(options.device))) {}

GraphTrainer::GraphTrainer(std::unique_ptr<Task> task, const TrainerOptions& options, const GraphOptions& graph,
                           at::Device device)
    : BaseTrainer("graph", std::make_unique<TrainStep>(std::move(task), device, options.step()), device, options.loop),
      executor_(std::make_unique<GraphExecutor>(rule(), device, graph)) {}

GraphTrainer::~GraphTrainer() = default;

StepResult GraphTrainer::run_one_step(const MicroBatches& micro_batches, StepObserver& observer) {
  const StepPath path = executor_->choose(micro_batches, observer);
  return executor_->run(ranks_mix() ? StepPath::kEager : path, micro_batches, observer);
}

double GraphTrainer::plan(const MicroBatches& micro_batches, const StepObserver& observer) {
  return executor_->ranks_need_same_path() ? static_cast<double>(executor_->choose(micro_batches, observer)) : 0;
}

void GraphTrainer::load_state_dict(const StateDict& state) {
  BaseTrainer::load_state_dict(state);
  executor_->state_replaced();
}

std::vector<SignatureReport> GraphTrainer::report() const { return executor_->report(); }

int64_t GraphTrainer::eager_steps() const { return executor_->eager_steps(); }

int64_t GraphTrainer::replays() const { return executor_->replays(); }

std::string GraphTrainer::program_text() const { return executor_->program_text(); }

}  // namespace duet
