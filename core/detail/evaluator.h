#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>
#include "core/train_context.h"
#include "data/data_source.h"
#include "metrics/metric.h"

namespace duet {

struct LoopOptions;
class EpochPlan;
class ForwardPasses;
class HookList;
class MicroBatchReader;
class RankSync;

// Passes over data that change no weight: validation, test, prediction. Each calls its hooks, leaves out what a limit
// cuts off, and stops in the middle where the run is interrupted.
class Evaluator {
 public:
  enum class Kind { kValidation, kTest };
  // What it works with; all must outlive it.
  struct Parts {
    HookList& hooks;
    TrainContext& context;
    MicroBatchReader& reader;
    RankSync& ranks;
    EpochPlan& epochs;
    ForwardPasses& forward;
  };

  Evaluator(Parts parts, const LoopOptions& options) : parts_(parts), options_(options) {}

  // Its results are called "<prefix>/<name>", or "<name>" without a prefix.
  void add_metric(std::unique_ptr<Metric> metric, std::string prefix);

  // Fills in context.evaluation.metrics; then calls `on_results`, before any hook sees them. A pass that was cut short
  // has no results. Throws ConfigError if two metrics give results of one name.
  void evaluate(DataSource& data, Kind kind, const std::function<void()>& on_results = {});
  void predict(DataSource& data, const std::function<void(const Batch&, const NamedTensors&)>& sink);
  // One batch, without hooks.
  NamedTensors predict(const Batch& batch);

 private:
  struct NamedMetric {
    std::string prefix;
    std::unique_ptr<Metric> metric;
  };
  struct Pass;

  void run(const Pass& pass, DataSource& data);
  void collect(MeanLoss& mean_loss);

  Parts parts_;
  const LoopOptions& options_;
  std::vector<NamedMetric> metrics_;
};

}  // namespace duet
