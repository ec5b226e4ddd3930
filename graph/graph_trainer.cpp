#include "graph/graph_trainer.h"
#include "core/detail/train_step.h"
#include "graph/detail/graph_executor.h"

namespace duet {

const OptionFields& GraphOptions::fields() {
  using O = GraphOptions;
  return described<O>("GraphOptions", [](const auto& add) {
    add("fallback", &O::fallback, "what becomes of a step that cannot be captured", {"auto", "strict", "eager"});
    add("cache_bytes", &O::cache_bytes, "memory of all captured steps")
        .in(above(0))
        .expects("a number of bytes > 0")
        .called("bytes");
    add("check", &O::check, "which steps run their host code to compare it with what was captured",
        {"every", "budget", "off"});
    add("check_budget", &O::check_budget, "time that these checks may take, as a share of the replays'")
        .in(between(0, 1));
    add("verify_interval", &O::verify_interval, "replays between two comparisons with eager; 0: none").in(at_least(0));
    add("fuse", &O::fuse, "kernels of duet's own where they give the same bits", {"off", "exact"})
        .called("exact, off")
        .expects("exact or off: passes that change numerics are not available in this version");
    add("fuse_after", &O::fuse_after, "replays of a captured step before kernels that need a trial are tried for it")
        .in(at_least(0));
  });
}

GraphTrainer::GraphTrainer(std::unique_ptr<Task> task, const TrainerOptions& options, const GraphOptions& graph)
    : BaseTrainer(std::move(task), options, Mode::kGraph, graph_executor_with(graph)) {}

GraphExecutor& GraphTrainer::graph() const { return static_cast<GraphExecutor&>(executor(Mode::kGraph)); }

std::vector<SignatureReport> GraphTrainer::report() const {
  std::vector<SignatureReport> reports = graph().report();
  for (StepExecutor* executor : evaluation_executors()) {
    for (SignatureReport& report : static_cast<GraphExecutor*>(executor)->report())
      reports.push_back(std::move(report));
  }
  return reports;
}

int64_t GraphTrainer::eager_steps() const { return graph().eager_steps(); }

int64_t GraphTrainer::replays() const { return graph().replays(); }

std::string GraphTrainer::program_text() const { return graph().program_text(); }

}  // namespace duet
