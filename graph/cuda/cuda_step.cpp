#include "graph/cuda/cuda_step.h"

#include "base/detail/error_text.h"
#include "graph/record/op_recorder.h"
#include "graph/record/recording_points.h"

namespace duet {

// At a host point one graph ends and the next begins; hooks are not called, since nothing has run yet.
class CudaStep::CapturingPoints : public StepObserver {
 public:
  CapturingPoints(StepObserver& inner, CudaStep& step) : inner_(inner), step_(step) {}

  void after_backward(const StepView&) override { split(Moment::kAfterBackward); }
  void before_optimizer_step(const StepView&) override { split(Moment::kBeforeOptimizerStep); }
  void in_step(StepView& context) override { inner_.in_step(context); }

 private:
  void split(Moment moment) {
    if (!inner_.splits()) return;
    step_.backend_->end();
    step_.moments_.push_back(moment);
    step_.backend_->begin();
  }

  StepObserver& inner_;
  CudaStep& step_;
};

bool CudaStep::capture(TrainStep& rule, const MicroBatches& micro_batches, StepObserver& points, bool strict, StepResult& output) {
  inputs_.fill(micro_batches);
  const NamedTensors state_before = rule.mutable_state();
  OpRecorder recorder(rule.parameters(), strict);
  recorder.watch_inputs(inputs_.micro_batches());
  std::vector<Moment> unused;  // the graphs' own moments come with their capture
  RecordingPoints recording(points, recorder, unused);
  recorder.watch([&] { output = rule.run(inputs_.micro_batches(), recording); });
  recorder.pause();
  const std::string replaced = replaced_tensor(state_before, rule.mutable_state());
  if (!replaced.empty()) recorder.fail(replaced);
  failure_ = recorder.failure();
  op_count_ = recorder.tape().ops.size();
  if (!failure_.empty()) {
    inputs_.copy_to(micro_batches);
    return false;
  }
  remember(points, recorder.tape());
  return true;
}

bool CudaStep::prepare(TrainStep& rule, StepObserver& points) {
  if (prepared_) return true;
  for (const auto& parameter : rule.parameters()) parameter.second.mutable_grad().reset();  // backward allocates them in the pool
  try {
    backend_->begin();
    CapturingPoints capturing(points, *this);
    output_ = rule.run(inputs_.micro_batches(), capturing);
    backend_->end();
  } catch (const std::exception& error) {
    backend_->abort();
    failure_ = "the device refused the capture (" + first_line(error) + ")";
    for (const auto& parameter : rule.parameters()) parameter.second.mutable_grad().reset();
    return false;
  }
  for (const auto& parameter : rule.parameters()) gradients_.push_back(parameter.second.grad());
  prepared_ = true;
  return true;
}

std::string CudaStep::text(const NamedTensors&) const {
  return std::to_string(moments_.size() + 1) + " device graph(s) of " + std::to_string(op_count_) + " ops in all\n";
}

}  // namespace duet
