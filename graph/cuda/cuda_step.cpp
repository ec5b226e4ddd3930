#include "graph/cuda/cuda_step.h"
#include "base/detail/text.h"

namespace duet {

// At a split point one graph ends and the next begins; hooks are not called, since nothing has run yet.
class CudaStep::CapturingObserver : public StepObserver {
 public:
  CapturingObserver(StepObserver& inner, CaptureBackend& backend) : inner_(inner), backend_(backend) {}

  void after_backward(const StepView&) override { split(); }
  void before_optimizer_step(const StepView&) override { split(); }
  void in_step(StepView& view) override { inner_.in_step(view); }

 private:
  void split() {
    if (!inner_.splits()) return;
    backend_.end();
    backend_.begin();
  }

  StepObserver& inner_;
  CaptureBackend& backend_;
};

bool CudaStep::prepare(TrainStep& step, StepObserver& observer) {
  if (prepared_) return true;
  step.zero_grad();  // backward allocates gradients in the pool
  try {
    backend_->begin();
    CapturingObserver capturing(observer, *backend_);
    output_ = step.run(inputs_.micro_batches(), capturing);
    backend_->end();
  } catch (const std::exception& error) {
    backend_->abort();
    failure_ = "the device refused the capture (" + first_line(error) + ")";
    step.zero_grad();
    return false;
  }
  for (const auto& parameter : step.parameters()) gradients_.push_back(parameter.second.grad());
  prepared_ = true;
  return true;
}

std::string CudaStep::text(const NamedTensors&) const {
  return std::to_string(segments()) + " device graph(s) of " + std::to_string(op_count_) + " ops in all\n";
}

}  // namespace duet
