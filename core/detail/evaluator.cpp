#include "core/detail/evaluator.h"
#include <algorithm>
#include <cctype>
#include <exception>
#include <optional>
#include <set>
#include <utility>
#include <ATen/core/grad_mode.h>
#include <c10/util/ScopeExit.h>
#include "base/detail/text.h"
#include "base/device.h"
#include "base/error.h"
#include "base/log.h"
#include "core/detail/forward_pass.h"
#include "core/detail/micro_batch_reader.h"
#include "core/detail/rank_sync.h"
#include "core/detail/step_place.h"
#include "core/hook.h"
#include "core/trainer_options.h"

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

// What a pass calls: `visit` for every batch, on the device and as it came.
struct Evaluator::Pass {
  RunKind run;             // that it is on its own
  const char* batch_name;  // in errors
  CodeKind kind;
  HookPoint before;  // its first point
  int64_t limit;     // batches of each dataset; 0: all
  std::function<NamedTensors(const Batch& batch, const Batch& host)> visit;
  // Of the metrics, over all ranks. Null: a prediction, which may be one rank's own affair, over all of its data.
  MetricValues* results = nullptr;
  std::function<void()> on_results{};

  HookPoint point(Place place) const { return point_of(before, place); }
};

void check_names(const NamedSources& data) {
  require<ConfigError>(!data.empty(), "[BaseTrainer] found no dataset to evaluate on, expected at least one; name one");
  if (data.size() == 1 && data.front().name.empty()) return;
  std::set<std::string> names;
  for (const NamedSource& source : data) {
    const bool is_word = std::all_of(source.name.begin(), source.name.end(), [](char letter) {
      return std::isalnum(static_cast<unsigned char>(letter)) != 0 || letter == '_' || letter == '-';
    });
    require<ConfigError>(is_word && !source.name.empty(),
                         "[BaseTrainer] found a dataset called '" + source.name +
                             "', expected letters, digits, _ and -: its results are called <name>/<metric>; rename it");
    require<ConfigError>(names.insert(source.name).second, "[BaseTrainer] found two datasets called '" + source.name +
                                                               "', expected different names; rename one of them");
  }
}

void Evaluator::add_metric(std::unique_ptr<Metric> metric, std::string prefix) {
  require<ConfigError>(metric != nullptr, "[BaseTrainer] the metric is null; give one");
  metrics_.push_back({std::move(prefix), std::move(metric)});
}

void Evaluator::run(const Pass& pass, const NamedSources& data) {
  const at::NoGradGuard no_grad;
  const auto evaluates = parts_.forward.evaluation_mode().scope();
  if (parts_.context.control.kind == RunKind::kNone) return run_alone(pass, data);
  pass_over(pass, data);
  parts_.hooks.call(pass.point(kAfter), parts_.context);
}

// As BaseTrainer does with training, whose outcome stays known.
void Evaluator::run_alone(const Pass& pass, const NamedSources& data) {
  RunControl& control = parts_.context.control;
  control.kind = pass.run;
  const auto closed = c10::make_scope_exit([&control, error = std::exchange(control.error, "")] {
    control.kind = RunKind::kNone;
    control.error = error;
  });
  std::exception_ptr error;
  const auto attempt = [&](const auto& body) {
    const std::exception_ptr found = caught(body);
    if (!found || error) return;
    error = found;
    control.error = text_of(found);
  };
  const auto tell = [&](HookPoint point) { attempt([&] { parts_.hooks.call(point, parts_.context); }); };
  attempt([&] {
    parts_.hooks.call(HookPoint::kBeforeRun, parts_.context);
    pass_over(pass, data);
  });
  if (error) tell(HookPoint::kOnException);
  tell(pass.point(kAfter));
  tell(HookPoint::kAfterRun);
  if (error) std::rethrow_exception(error);
}

void Evaluator::pass_over(const Pass& pass, const NamedSources& data) {
  auto& [hooks, context, reader, ranks, forward] = parts_;
  const auto taken_back = c10::make_scope_exit([&evaluation = context.evaluation] {
    evaluation.data = nullptr;
    evaluation.batch = nullptr;
    evaluation.outputs = nullptr;
    evaluation.dataset.clear();
  });
  context.evaluation.batch_index = 0;
  context.evaluation.data = &data.front().source;
  hooks.call(pass.point(kBefore), context);
  hooks.call(pass.point(kBeforeEpoch), context);
  for (const NamedSource& source : data) {
    const bool is_in_use = &source.source == context.data && context.progress.step_in_epoch > 0;
    const StateDict position = is_in_use ? source.source.state_dict() : StateDict();
    const std::exception_ptr error = caught([&] { pass_over(pass, source); });
    if (is_in_use) source.source.load_state_dict(position);  // the epoch goes on where it stood
    if (error) std::rethrow_exception(error);
    if (context.control.is_interrupted()) return;
  }
  if (pass.results != nullptr) {
    context.evaluation.metrics = std::move(*pass.results);
    if (pass.on_results) pass.on_results();
  }
  hooks.call(pass.point(kAfterEpoch), context);
}

void Evaluator::pass_over(const Pass& pass, const NamedSource& source) {
  auto& [hooks, context, reader, ranks, forward] = parts_;
  DataSource& data = source.source;
  context.evaluation.dataset = source.name;
  context.evaluation.data = &data;
  int64_t& index = context.evaluation.batch_index;
  index = 0;
  if (pass.results != nullptr) {
    reset_metrics();
    data.set_shard(context.communicator->rank(), context.communicator->world_size());
  }
  data.start_epoch(0);
  if (pass.results != nullptr) {
    ranks.check_data(data, to_string(pass.run) + (source.name.empty() ? "" : " '" + source.name + "'"));
  }
  for (; pass.limit == 0 || index < pass.limit; ++index) {
    context.control.look();
    if (context.control.is_interrupted()) break;
    const std::optional<Batch> host = next_batch(data, context.control);
    if (!host) break;
    const Batch batch = reader.to_device(*host);
    context.evaluation.batch = &batch;
    hooks.call(pass.point(kBeforeIter), context);
    const NamedTensors outputs = with_place({pass.batch_name, index, forward.code(pass.kind), {&batch, 1}},
                                            [&] { return pass.visit(batch, *host); });
    context.evaluation.outputs = &outputs;
    hooks.call(pass.point(kAfterIter), context);
    context.evaluation.outputs = nullptr;
    context.evaluation.batch = nullptr;
  }
  if (pass.results != nullptr && context.control.outcome == RunOutcome::kRunning) ranks.agree_on_stop();
  forward.settle();
  if (pass.results != nullptr && !context.control.is_interrupted()) collect(source.name, *pass.results);
}

void Evaluator::reset_metrics() {
  mean_loss_.reset();
  for (const NamedMetric& entry : metrics_) entry.metric->reset();
}

void Evaluator::collect(const std::string& dataset, MetricValues& all) {
  CurrentEvaluation& evaluation = parts_.context.evaluation;
  std::vector<Metric*> all_metrics{&mean_loss_};
  for (const NamedMetric& entry : metrics_) all_metrics.push_back(entry.metric.get());
  combine_over_ranks(all_metrics, *parts_.context.communicator, parts_.reader.device());
  for (const auto& [name, value] : mean_loss_.compute()) all.emplace(full_name(dataset, name), value);
  for (const auto& [own_prefix, metric] : metrics_) {
    const std::string prefix = own_prefix.empty() ? dataset : full_name(dataset, own_prefix);
    const MetricValues part = metric->compute();
    for (const std::string& name : metric->names()) {
      if (evaluation.first_metric.empty() && part.count(name) != 0) evaluation.first_metric = full_name(prefix, name);
    }
    for (const auto& [name, value] : part) {
      require<ConfigError>(all.emplace(full_name(prefix, name), value).second,
                           "[BaseTrainer] two metrics report '" + full_name(prefix, name) +
                               "', expected different names; give one of them a prefix in add_metric()");
    }
    if (parts_.hooks.size() > 0) publish_table(prefix, *metric, parts_.context.log);
  }
}

void Evaluator::evaluate(const NamedSources& data, RunKind kind, const std::function<void()>& on_results) {
  TrainContext& context = parts_.context;
  MetricValues all;
  context.evaluation.metrics.clear();
  context.evaluation.first_metric.clear();
  const auto visit = [&](const Batch& batch, const Batch& host) {
    const double weight = context.task.weight(host);  // first: it may refuse labels, which would cost a GPU its context
    NamedTensors outputs = parts_.forward.run(CodeKind::kValidation, batch);
    // A validation step may give metrics alone; there is no result "loss" then.
    if (std::ranges::any_of(outputs, [](const auto& output) { return output.first == "loss"; })) {
      mean_loss_.add(batch, outputs, weight);
    }
    for (const NamedMetric& entry : metrics_) entry.metric->add(batch, outputs, weight);
    return outputs;
  };
  const bool test = kind == RunKind::kTest;
  const Pass pass{.run = kind,
                  .batch_name = test ? "test batch" : "validation batch",
                  .kind = CodeKind::kValidation,
                  .before = test ? HookPoint::kBeforeTest : HookPoint::kBeforeVal,
                  .limit = test ? options_.limit_test_batches : options_.limit_val_batches,
                  .visit = visit,
                  .results = &all,
                  .on_results = on_results};
  parts_.ranks.report(to_string(kind));
  context.communicator->use_start_timeout(true);  // ranks come to the end of their shards at different times
  const auto impatient = c10::make_scope_exit([&context] { context.communicator->use_start_timeout(false); });
  run(pass, data);
}

void Evaluator::try_out(const NamedSources& data) {
  LoopOptions options = options_;
  const int64_t most = options.limit_val_batches, wanted = options.num_sanity_val_steps;  // -1: all there are
  if (wanted == 0) return;
  if (wanted > 0) options.limit_val_batches = most > 0 ? std::min(most, wanted) : wanted;
  HookList nobody;
  Evaluator trial({nobody, parts_.context, parts_.reader, parts_.ranks, parts_.forward}, options);
  trial.metrics_.swap(metrics_);
  const auto swapped_back = c10::make_scope_exit([&] { trial.metrics_.swap(metrics_); });
  const StateDict random = random_state();
  trial.evaluate(data, RunKind::kValidation);
  set_random_state(random);
  parts_.context.evaluation.metrics.clear();
}

void Evaluator::predict(DataSource& data, const std::function<void(const Batch&, const NamedTensors&)>& sink) {
  const auto visit = [&](const Batch& batch, const Batch&) {
    NamedTensors outputs = parts_.forward.run(CodeKind::kPrediction, batch);
    if (sink) sink(batch, outputs);
    return outputs;
  };
  run({.run = RunKind::kPrediction,
       .batch_name = "prediction batch",
       .kind = CodeKind::kPrediction,
       .before = HookPoint::kBeforePredict,
       .limit = options_.limit_predict_batches,
       .visit = visit},
      {{"", data}});
}

Batch Evaluator::predict(const Batch& batch) {
  const auto evaluates = parts_.forward.evaluation_mode().scope();
  const Batch moved = parts_.reader.to_device(batch);
  NamedTensors outputs = with_place({"prediction batch", 0, parts_.forward.code(CodeKind::kPrediction), {&moved, 1}},
                                    [&] { return parts_.forward.run(CodeKind::kPrediction, moved); });
  Batch predicted;
  for (auto& [name, tensor] : outputs) predicted.set(name, std::move(tensor));
  predicted.set_sample_ids(batch.sample_ids());
  return predicted;
}

}  // namespace duet
