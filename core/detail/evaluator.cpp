#include "core/detail/evaluator.h"
#include <optional>
#include <utility>
#include <ATen/core/grad_mode.h>
#include <c10/util/ScopeExit.h>
#include "base/error.h"
#include "base/log.h"
#include "core/detail/combined_metrics.h"
#include "core/detail/epoch_plan.h"
#include "core/detail/forward_pass.h"
#include "core/detail/micro_batch_reader.h"
#include "core/detail/rank_sync.h"
#include "core/hook.h"

namespace duet {

namespace {

// The points of a validation, a test and a prediction stand in one order in DUET_HOOK_POINTS.
enum Place { kBefore, kAfter, kBeforeEpoch, kAfterEpoch, kBeforeIter, kAfterIter };

constexpr HookPoint point_of(HookPoint before, Place place) {
  return static_cast<HookPoint>(static_cast<int>(before) + place);
}
static_assert(point_of(HookPoint::kBeforeVal, kAfterIter) == HookPoint::kAfterValIter);
static_assert(point_of(HookPoint::kBeforeTest, kAfterIter) == HookPoint::kAfterTestIter);
static_assert(point_of(HookPoint::kBeforePredict, kAfterIter) == HookPoint::kAfterPredictIter);

// A run that is interrupted does not wait for the end of a pass.
bool interrupted(const RunControl& control) {
  return control.outcome == RunOutcome::kRunning && control.stop_outcome == RunOutcome::kInterrupted;
}

std::string full_name(const std::string& prefix, const std::string& name) {
  return prefix.empty() ? name : prefix + "/" + name;
}

void publish_table(const std::string& prefix, const Metric& metric, const RunLog& log) {
  const std::string table = metric.text();
  if (table.empty()) return;
  const std::vector<std::string> names = metric.names();
  log.text(full_name(prefix, names.empty() ? "table" : names.front() + "_table"), table);
  log_info((prefix.empty() ? "" : prefix + ":") + "\n" + table);
}

}  // namespace

// What a pass calls: `visit` for every batch, on the device and as it came, and `finish` when all were seen.
struct Evaluator::Pass {
  const char* name;
  HookPoint before;  // its first point
  int64_t limit;     // batches; 0: all
  bool all_ranks_take_part;
  std::function<NamedTensors(const Batch& batch, const Batch& host)> visit;
  std::function<void()> finish = [] {};
};

void Evaluator::add_metric(std::unique_ptr<Metric> metric, std::string prefix) {
  require<ConfigError>(metric != nullptr, "[BaseTrainer] the metric is null; give one");
  metrics_.push_back({std::move(prefix), std::move(metric)});
}

void Evaluator::run(const Pass& pass, DataSource& data) {
  auto& [hooks, context, reader, ranks, epochs, forward] = parts_;
  const at::NoGradGuard no_grad;
  const auto tell = [&](Place place) { parts_.hooks.call(point_of(pass.before, place), parts_.context); };
  int64_t& index = context.evaluation.batch_index;
  index = 0;
  const EvaluationMode::Scope evaluates(forward.evaluation_mode());
  const auto taken_back = c10::make_scope_exit([&context = context] {
    context.evaluation.batch = nullptr;
    context.evaluation.outputs = nullptr;
  });
  // A prediction may be one rank's own affair, over all of its data.
  if (pass.all_ranks_take_part) data.set_shard(context.communicator->rank(), context.communicator->world_size());
  tell(kBefore);
  tell(kBeforeEpoch);
  data.start_epoch(0);
  if (pass.all_ranks_take_part) ranks.check_data(data, pass.name);
  for (; !interrupted(context.control) && (pass.limit == 0 || index < pass.limit); ++index) {
    const std::optional<Batch> host = data.next();
    if (!host) break;
    const Batch batch = reader.to_device(*host);
    context.evaluation.batch = &batch;
    tell(kBeforeIter);
    const NamedTensors outputs =
        with_checked_indices("evaluation batch", index, [&] { return pass.visit(batch, *host); });
    context.evaluation.outputs = &outputs;
    tell(kAfterIter);
    context.evaluation.outputs = nullptr;
    context.evaluation.batch = nullptr;
  }
  if (pass.all_ranks_take_part && context.control.outcome == RunOutcome::kRunning) ranks.agree_on_stop();
  forward.settle();
  if (!interrupted(context.control)) {
    pass.finish();
    tell(kAfterEpoch);
  }
  tell(kAfter);
}

void Evaluator::collect(MeanLoss& mean_loss) {
  CurrentEvaluation& evaluation = parts_.context.evaluation;
  std::vector<Metric*> all_metrics{&mean_loss};
  for (const NamedMetric& entry : metrics_) all_metrics.push_back(entry.metric.get());
  combine_over_ranks(all_metrics, *parts_.context.communicator, parts_.reader.device());
  MetricValues all = mean_loss.compute();
  for (const auto& [prefix, metric] : metrics_) {
    const MetricValues part = metric->compute();
    for (const std::string& name : metric->names()) {
      if (evaluation.first_metric.empty() && part.count(name) != 0) evaluation.first_metric = full_name(prefix, name);
    }
    for (const auto& [name, value] : part) {
      require<ConfigError>(all.emplace(full_name(prefix, name), value).second,
                           "[BaseTrainer] two metrics report '" + full_name(prefix, name) +
                               "', expected different names; give one of them a prefix in add_metric()");
    }
    publish_table(prefix, *metric, parts_.context.log);
  }
  evaluation.metrics = std::move(all);
}

void Evaluator::evaluate(DataSource& data, Kind kind, const std::function<void()>& on_results) {
  TrainContext& context = parts_.context;
  MeanLoss mean_loss;
  for (const NamedMetric& entry : metrics_) entry.metric->reset();
  context.evaluation.metrics.clear();
  context.evaluation.first_metric.clear();
  const auto visit = [&](const Batch& batch, const Batch& host) {
    parts_.epochs.check_time();
    NamedTensors outputs = parts_.forward.run(CodeKind::kValidation, batch);
    const double weight = context.task.weight(host);  // without a wait for the device
    mean_loss.add(batch, outputs, weight);
    for (const NamedMetric& entry : metrics_) entry.metric->add(batch, outputs, weight);
    return outputs;
  };
  const bool test = kind == Kind::kTest;
  const Pass pass{.name = test ? "test" : "validation",
                  .before = test ? HookPoint::kBeforeTest : HookPoint::kBeforeVal,
                  .limit = test ? options_.limit_test_batches : options_.limit_val_batches,
                  .all_ranks_take_part = true,
                  .visit = visit,
                  .finish = [&] {
                    collect(mean_loss);
                    if (on_results) on_results();
                  }};
  parts_.ranks.report(pass.name);
  context.communicator->set_patient(true);  // ranks come to the end of their shards at different times
  run(pass, data);
  context.communicator->set_patient(false);
}

void Evaluator::predict(DataSource& data, const std::function<void(const Batch&, const NamedTensors&)>& sink) {
  const auto visit = [&](const Batch& batch, const Batch&) {
    NamedTensors outputs = parts_.forward.run(CodeKind::kPrediction, batch);
    if (sink) sink(batch, outputs);
    return outputs;
  };
  run({.name = "predict",
       .before = HookPoint::kBeforePredict,
       .limit = options_.limit_predict_batches,
       .all_ranks_take_part = false,
       .visit = visit},
      data);
}

NamedTensors Evaluator::predict(const Batch& batch) {
  return with_checked_indices(
      "predict(), batch", 0, [&] { return parts_.forward.run(CodeKind::kPrediction, parts_.reader.to_device(batch)); });
}

}  // namespace duet
