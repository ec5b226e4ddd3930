#include "core/train_context.h"
#include <algorithm>
#include "base/error.h"

namespace duet {

int64_t Progress::planned_steps() const {
  const int64_t epochs = max_epochs * steps_per_epoch, by_epochs = epochs > 0 ? epochs + epoch_offset : 0;
  if (max_steps <= 0) return by_epochs;
  return by_epochs > 0 ? std::min(max_steps, by_epochs) : max_steps;
}

int64_t Progress::run_length() const {
  const int64_t planned = planned_steps();
  const bool over = planned != 0 && max_epochs > 0 && epoch >= max_epochs;
  return over ? std::max(planned, step) : planned;
}

const at::Tensor& CurrentStep::loss() const {
  require<ConfigError>(result != nullptr,
                       "[TrainContext] found no loss at this point, expected one inside of a step; "
                       "ask at after_backward, after_train_iter or between them");
  return result->loss;
}

std::vector<at::Tensor> CurrentStep::gradients() const {
  require<ConfigError>(parameters != nullptr,
                       "[TrainContext] found no parameters, expected those of a trainer; ask in "
                       "a hook that a trainer calls");
  std::vector<at::Tensor> gradients;
  for (const auto& [name, parameter] : *parameters) {
    if (parameter.grad().defined()) gradients.push_back(parameter.grad());
  }
  return gradients;
}

const char* to_string(RunOutcome outcome) {
  switch (outcome) {
    case RunOutcome::kNone: return "none";
    case RunOutcome::kRunning: return "running";
    case RunOutcome::kFinished: return "finished";
    case RunOutcome::kStopped: return "stopped";
    case RunOutcome::kInterrupted: return "interrupted";
    case RunOutcome::kFailed: return "failed";
  }
  return "";
}

void RunControl::stop(const std::string& reason, RunOutcome how) {
  if (!stop_reason.empty()) return;
  stop_reason = reason.empty() ? "a hook asked" : reason;
  stop_outcome = how;
}

}  // namespace duet
