#include "base/detail/checked_indices.h"
#include "distributed/communicator.h"
#include "base/detail/device_copy.h"
#include "base/error.h"
#include "base/log.h"
#include "core/trainer.h"

#include <ATen/core/grad_mode.h>

namespace duet {

// Validation, test and prediction: passes over data that change no weight.

namespace {

struct EvaluationPoints {
  HookPoint before, before_epoch, before_iter, after_iter, after_epoch, after;
};

constexpr EvaluationPoints kVal = {HookPoint::kBeforeVal, HookPoint::kBeforeValEpoch, HookPoint::kBeforeValIter,
                                   HookPoint::kAfterValIter, HookPoint::kAfterValEpoch, HookPoint::kAfterVal};
constexpr EvaluationPoints kTest = {HookPoint::kBeforeTest, HookPoint::kBeforeTestEpoch, HookPoint::kBeforeTestIter,
                                    HookPoint::kAfterTestIter, HookPoint::kAfterTestEpoch, HookPoint::kAfterTest};
constexpr EvaluationPoints kPredict = {
    HookPoint::kBeforePredict,     HookPoint::kBeforePredictEpoch, HookPoint::kBeforePredictIter,
    HookPoint::kAfterPredictIter, HookPoint::kAfterPredictEpoch,  HookPoint::kAfterPredict};

// What a pass lends to hooks is taken back and the model trains again, however the pass ends.
class PassGuard {
 public:
  explicit PassGuard(TrainContext& context) : context_(context) { context_.task.train(false); }
  ~PassGuard() {
    context_.evaluation.batch = nullptr;
    context_.evaluation.outputs = nullptr;
    context_.task.train(true);
  }
  PassGuard(const PassGuard&) = delete;
  PassGuard& operator=(const PassGuard&) = delete;

 private:
  TrainContext& context_;
};

// What a pass goes over, and what it calls: `visit` for every batch, `finish` when all were seen.
struct Pass {
  const EvaluationPoints& points;
  DataSource& data;
  int64_t limit;  // batches; 0: all
  std::function<void()> check;  // the data, with the other ranks
  std::function<void()> agree;  // with the other ranks on whether the pass was whole
  std::function<NamedTensors(const Batch& batch, const Batch& host)> visit;  // on the device, and as it came
  std::function<void()> finish;
};

// A run that is interrupted does not wait for the end of a pass.
bool interrupted(const TrainContext& context) {
  return context.control.outcome == RunOutcome::kRunning && context.control.stop_outcome == RunOutcome::kInterrupted;
}

void run_pass(HookList& hooks, TrainContext& context, DeviceCopy& copy, const Pass& pass) {
  const EvaluationPoints& p = pass.points;
  const at::NoGradGuard no_grad;
  const PassGuard guard(context);
  hooks.call(p.before, context);
  hooks.call(p.before_epoch, context);
  pass.data.start_epoch(0);
  pass.check();
  context.evaluation.batch_index = 0;
  while (!interrupted(context) && (pass.limit == 0 || context.evaluation.batch_index < pass.limit)) {
    const std::optional<Batch> host = pass.data.next();
    if (!host) break;
    const Batch batch = copy.to_device(*host);
    context.evaluation.batch = &batch;
    hooks.call(p.before_iter, context);
    const NamedTensors outputs = with_checked_indices("evaluation batch", context.evaluation.batch_index,
                                                      [&] { return pass.visit(batch, *host); });
    context.evaluation.outputs = &outputs;
    hooks.call(p.after_iter, context);
    context.evaluation.outputs = nullptr;
    context.evaluation.batch = nullptr;
    ++context.evaluation.batch_index;
  }
  if (context.control.outcome == RunOutcome::kRunning) pass.agree();
  const bool whole = !interrupted(context);
  if (whole) {
    pass.finish();
    hooks.call(p.after_epoch, context);
  }
  hooks.call(p.after, context);
}

std::string full_name(const std::string& prefix, const std::string& name) {
  return prefix.empty() ? name : prefix + "/" + name;
}

void publish_table(const std::string& prefix, const Metric& metric, const RunLog& messages) {
  const std::string table = metric.text();
  if (table.empty()) return;
  const std::vector<std::string> names = metric.names();
  messages.text(full_name(prefix, names.empty() ? "table" : names.front() + "_table"), table);
  log_info((prefix.empty() ? "" : prefix + ":") + "\n" + table);
}

// The first result in the metric's own order; empty if it has none.
std::string first_of(const std::string& prefix, const Metric& metric, const MetricValues& part) {
  for (const std::string& name : metric.names()) {
    if (part.count(name) != 0) return full_name(prefix, name);
  }
  return {};
}

void merge_results(const std::string& prefix, const MetricValues& part, MetricValues& all) {
  for (const auto& [name, value] : part) {
    const std::string full = full_name(prefix, name);
    if (!all.emplace(full, value).second) {
      throw ConfigError("[BaseTrainer] two metrics report '" + full +
                        "', expected different names; give one of them a prefix in add_metric()");
    }
  }
}

}  // namespace

MetricValues BaseTrainer::evaluate(DataSource& data, bool test) {
  MeanLoss mean_loss;
  for (const NamedMetric& entry : metrics_) entry.metric->reset();
  context_.evaluation.metrics.clear();
  context_.evaluation.first_metric.clear();
  const auto visit = [&](const Batch& batch, const Batch& host) {
    watch_time();
    NamedTensors outputs = task().validation_step(batch);
    const double weight = task().weight(host);  // without a wait for the device
    mean_loss.add(batch, outputs, weight);
    for (const NamedMetric& entry : metrics_) entry.metric->add(batch, outputs, weight);
    return outputs;
  };
  const auto finish = [&] {
    std::vector<Metric*> all_metrics{&mean_loss};
    for (const NamedMetric& entry : metrics_) all_metrics.push_back(entry.metric.get());
    sum_over_ranks(all_metrics);
    MetricValues all = mean_loss.compute();
    for (const NamedMetric& entry : metrics_) {
      const MetricValues part = entry.metric->compute();
      if (context_.evaluation.first_metric.empty())
        context_.evaluation.first_metric = first_of(entry.prefix, *entry.metric, part);
      merge_results(entry.prefix, part, all);
      publish_table(entry.prefix, *entry.metric, context_.log);
    }
    context_.evaluation.metrics = std::move(all);
    // A pass that did not come this far is made up for by a resume.
    if (!test && data_ != nullptr) validated_step_ = context_.progress.step;
  };
  const char* const what = test ? "test" : "validation";
  report(what);
  const int64_t limit = test ? options_.limit_test_batches : options_.limit_val_batches;
  Communicator* const ranks = context_.communicator;
  if (ranks != nullptr) ranks->set_patient(true);  // they come to the end of their shares at different times
  const auto check = [&] { check_data(data, what); };
  const auto agree = [this] { agree_on_stop(); };
  run_pass(hooks_, context_, *copy_,
           {.points = test ? kTest : kVal, .data = data, .limit = limit, .check = check, .agree = agree, .visit = visit,
            .finish = finish});
  if (ranks != nullptr) ranks->set_patient(false);
  return context_.evaluation.metrics;
}

MetricValues BaseTrainer::validate(DataSource& data) { return evaluate(data, /*test=*/false); }

MetricValues BaseTrainer::test(DataSource& data) { return evaluate(data, /*test=*/true); }

void BaseTrainer::predict(DataSource& data, const std::function<void(const Batch&, const NamedTensors&)>& sink) {
  const auto visit = [&](const Batch& batch, const Batch&) {
    NamedTensors outputs = task().predict(batch);
    if (sink) sink(batch, outputs);
    return outputs;
  };
  const auto nothing = [] {};
  run_pass(hooks_, context_, *copy_,
           {.points = kPredict, .data = data, .limit = options_.limit_predict_batches, .check = nothing,
            .agree = nothing, .visit = visit, .finish = nothing});
}

}  // namespace duet
