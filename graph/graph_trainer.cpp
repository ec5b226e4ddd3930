#include "graph/graph_trainer.h"

#include <c10/util/StringUtil.h>
#include "base/device.h"
#include "base/error.h"
#include "graph/record/op_recorder.h"
#include "graph/detail/step_cache.h"

namespace duet {

GraphTrainer::GraphTrainer(std::unique_ptr<Task> task, const TrainerOptions& options, const GraphOptions& graph)
    : GraphTrainer(std::move(task), options, graph, (options.validate(), check_options(graph), parse_device(options.device))) {}

GraphTrainer::GraphTrainer(std::unique_ptr<Task> task, const TrainerOptions& options, const GraphOptions& graph,
                           at::Device device)
    : BaseTrainer("graph", std::make_unique<TrainStep>(std::move(task), device, options.step()), device, options.loop),
      cache_(std::make_unique<StepCache>(capture_method_for(device, graph.fuse), graph)) {
  if (graph.fallback == Fallback::kEager) return;
  const std::string reason = rule().why_not_captured();
  require<ConfigError>(reason.empty(), "[GraphTrainer] " + reason);
  OpRecorder::self_check();
}

GraphTrainer::~GraphTrainer() = default;

StepResult GraphTrainer::run_one_step(const MicroBatches& micro_batches, StepObserver& points) {
  if (!ranks_mix()) return cache_->run(rule(), micro_batches, points);
  return cache_->run_eager(rule(), micro_batches, points);
}

// Collectives of NCCL that are captured on one rank and not on another are asking for trouble. On the CPU all ways send the
// same.
double GraphTrainer::plan(const MicroBatches& micro_batches, const StepObserver& points) {
  return device().is_cuda() ? cache_->plan(rule(), micro_batches, points) : 0;
}

void GraphTrainer::load_state_dict(const StateDict& state) {
  BaseTrainer::load_state_dict(state);
  cache_->drop_outdated(rule());
}

std::vector<SignatureReport> GraphTrainer::report() const { return cache_->report(); }

int64_t GraphTrainer::eager_steps() const { return cache_->eager_steps(); }

int64_t GraphTrainer::replays() const { return cache_->replays(); }

std::string GraphTrainer::program_text() const { return cache_->program_text(parameters()); }

}  // namespace duet
