#pragma once

#include <optional>
#include "base/detail/step_lock.h"
#include "core/detail/step_executor.h"

namespace duet {

// Runs everything op by op.
class EagerExecutor : public StepExecutor {
 public:
  explicit EagerExecutor(StepCode& code) : code_(code) {}

  StepPlan choose(const MicroBatches&, const StepObserver&) override { return {}; }
  StepResult run(const StepPlan&, const MicroBatches& micro_batches, StepObserver& observer) override {
    std::optional<StepLock::Step> lock;  // a random op fails while another thread captures
    if (!code_.weights().empty() && code_.weights().front().second.is_cuda()) lock.emplace();
    return code_.run(micro_batches, observer);
  }

 private:
  StepCode& code_;
};

}  // namespace duet
