#include "graph/graph_trainer.h"

#include <c10/util/StringUtil.h>
#include "base/error.h"
#include "core/train_step.h"
#include "graph/record/op_recorder.h"
#include "graph/detail/step_cache.h"

namespace duet {

void GraphOptions::validate() const {
  if (cache_bytes <= 0) {
    throw ConfigError(c10::str("[GraphOptions] cache_bytes is ", cache_bytes, ", expected a number of bytes > 0"));
  }
  if (verify_interval < 0) {
    throw ConfigError(c10::str("[GraphOptions] verify_interval is ", verify_interval, ", expected an integer >= 0"));
  }
}

namespace {

class GraphExecutor : public StepExecutor {
 public:
  GraphExecutor(TrainStep& step, at::Device device, const GraphOptions& options)
      : step_(step), is_cuda_(device.is_cuda()), cache(capture_method_for(device, options.fuse), options) {
    if (options.fallback == Fallback::kEager) return;
    const std::string reason = step.why_not_captured();
    require<ConfigError>(reason.empty(), "[GraphTrainer] " + reason);
    OpRecorder::self_check();
  }
  const char* mode() const override { return "graph"; }
  StepPath choose(const MicroBatches& micro_batches, const StepObserver& observer) override {
    return static_cast<StepPath>(static_cast<int>(cache.plan(step_, micro_batches, observer)) - 1);
  }
  StepResult run(StepPath path, const MicroBatches& micro_batches, StepObserver& observer) override {
    if (path == StepPath::kEager) return cache.run_eager(step_, micro_batches, observer);
    return cache.run(step_, micro_batches, observer);
  }
  bool ranks_need_same_path() const override { return is_cuda_; }
  void state_replaced() override { cache.drop_outdated(step_); }

 private:
  TrainStep& step_;
  bool is_cuda_;

 public:
  StepCache cache;
};

}  // namespace

GraphTrainer::GraphTrainer(std::unique_ptr<Task> task, const TrainerOptions& options, const GraphOptions& graph)
    : BaseTrainer(std::move(task), options, [&graph](TrainStep& step, at::Device device) {
        graph.validate();
        return std::make_unique<GraphExecutor>(step, device, graph);
      }) {}

StepCache& GraphTrainer::cache() const { return static_cast<GraphExecutor&>(executor()).cache; }

std::vector<SignatureReport> GraphTrainer::report() const { return cache().report(); }

int64_t GraphTrainer::eager_steps() const { return cache().eager_steps(); }

int64_t GraphTrainer::replays() const { return cache().replays(); }

std::string GraphTrainer::program_text() const { return cache().program_text({}); }

}  // namespace duet
