#include <duet/core/checked_indices.h>
#include <duet/core/device_copy.h>
#include <duet/core/trainer.h>

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
    context_.batch = nullptr;
    context_.outputs = nullptr;
    context_.task.train(true);
  }
  PassGuard(const PassGuard&) = delete;
  PassGuard& operator=(const PassGuard&) = delete;

 private:
  TrainContext& context_;
};

// Calls visit(batch) for every batch of one pass, between the points of `p`.
template <class Visit>
void pass(HookList& hooks, TrainContext& context, DataSource& data, DeviceCopy& copy, const EvaluationPoints& p,
          const std::function<void()>& finish, Visit visit) {
  const at::NoGradGuard no_grad;
  const PassGuard guard(context);
  hooks.call(p.before, context);
  hooks.call(p.before_epoch, context);
  data.start_epoch(0);
  context.iter = 0;
  while (std::optional<Batch> host = data.next()) {
    const Batch batch = copy.to_device(*host);
    context.batch = &batch;
    hooks.call(p.before_iter, context);
    const NamedTensors outputs = with_checked_indices("evaluation batch", context.iter, [&] { return visit(batch); });
    context.outputs = &outputs;
    hooks.call(p.after_iter, context);
    context.outputs = nullptr;
    context.batch = nullptr;
    ++context.iter;
  }
  finish();
  hooks.call(p.after_epoch, context);
  hooks.call(p.after, context);
}

}  // namespace

MetricValues BaseTrainer::evaluate(DataSource& data, bool test) {
  MeanLoss mean_loss;
  for (const auto& metric : metrics_) metric->reset();
  context_.metrics.clear();
  const auto finish = [&] {
    context_.metrics = mean_loss.compute();
    for (const auto& metric : metrics_) context_.metrics.merge(metric->compute());
  };
  pass(hooks_, context_, data, *copy_, test ? kTest : kVal, finish, [&](const Batch& batch) {
    NamedTensors outputs = task().validation_step(batch);
    const double weight = task().weight(batch);
    mean_loss.add(batch, outputs, weight);
    for (const auto& metric : metrics_) metric->add(batch, outputs, weight);
    return outputs;
  });
  return context_.metrics;
}

MetricValues BaseTrainer::validate(DataSource& data) { return evaluate(data, /*test=*/false); }

MetricValues BaseTrainer::test(DataSource& data) { return evaluate(data, /*test=*/true); }

void BaseTrainer::predict(DataSource& data, const std::function<void(const Batch&, const NamedTensors&)>& sink) {
  pass(hooks_, context_, data, *copy_, kPredict, [] {}, [&](const Batch& batch) {
    NamedTensors outputs = task().predict(batch);
    sink(batch, outputs);
    return outputs;
  });
}

}  // namespace duet
