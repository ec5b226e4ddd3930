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
class ForwardPasses;
class HookList;
class MicroBatchReader;
class RankSync;

// Passes over data that change no weight: validation, test, prediction. Each calls its hooks, leaves out what a limit
// cuts off, and stops in the middle where the run is interrupted. Where no run is open it is one of its own, with an
// end in every exit. Several datasets are one pass, in turn; their limits count in each.
class Evaluator {
 public:
  // What it works with; all must outlive it.
  struct Parts {
    HookList& hooks;
    TrainContext& context;
    MicroBatchReader& reader;
    RankSync& ranks;
    ForwardPasses& forward;
  };

  Evaluator(Parts parts, const LoopOptions& options) : parts_(parts), options_(options) {}

  // Its results are called "<prefix>/<name>", or "<name>" without a prefix.
  void add_metric(std::unique_ptr<Metric> metric, std::string prefix);

  // kValidation or kTest. Fills in context.evaluation.metrics; then calls `on_results`, before any hook sees them. A
  // pass that was cut short has no results. A source without a name, if it is the only one, gives results without one.
  // Throws ConfigError if two metrics give results of one name.
  void evaluate(const NamedSources& data, RunKind kind, const std::function<void()>& on_results = {});
  // LoopOptions::num_sanity_val_steps micro-batches of each, for nothing but their errors: no hooks, no results.
  void try_out(const NamedSources& data);
  void predict(DataSource& data, const std::function<void(const Batch&, const NamedTensors&)>& sink);
  // One batch, without hooks.
  Batch predict(const Batch& batch);

 private:
  struct NamedMetric {
    std::string prefix;
    std::unique_ptr<Metric> metric;
  };
  struct Pass;

  void run(const Pass& pass, const NamedSources& data);
  void run_alone(const Pass& pass, const NamedSources& data);
  void pass_over(const Pass& pass, const NamedSources& data);
  void pass_over(const Pass& pass, const NamedSource& data);
  void reset_metrics();
  // Results of one dataset, added to `all`.
  void collect(const std::string& dataset, MetricValues& all);

  Parts parts_;
  const LoopOptions& options_;
  MeanLoss mean_loss_;
  std::vector<NamedMetric> metrics_;
};

// What each rank has added becomes that of the whole evaluation, on all ranks. Throws ConfigError if the ranks' metrics
// differ.
void combine_over_ranks(const std::vector<Metric*>& metrics, Communicator& ranks, at::Device device);

// Throws ConfigError unless there is data, with names that differ and can stand in front of a metric's. A single source
// may have none.
void check_names(const NamedSources& data);

}  // namespace duet
