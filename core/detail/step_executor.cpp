#include "core/detail/step_executor.h"
#include "core/detail/eager_executor.h"

namespace duet {

const char* to_string(CodeKind kind) {
  switch (kind) {
    case CodeKind::kStep: return "step";
    case CodeKind::kValidation: return "validation";
    case CodeKind::kPrediction: return "prediction";
  }
  return "";
}

StepExecutor& StepExecutors::in(Mode mode) {
  std::unique_ptr<StepExecutor>& made = executors_[static_cast<std::size_t>(mode)];
  if (made == nullptr && mode == Mode::kEager) made = std::make_unique<EagerExecutor>(code_);
  if (made == nullptr) {
    require<ConfigError>(make_graph_ != nullptr,
                         "[EagerTrainer] it has no graph mode; make it with make_trainer(), or a GraphTrainer");
    made = make_graph_(code_, device_);
  }
  return *made;
}

void StepExecutors::state_replaced() const {
  for (const auto& executor : executors_) {
    if (executor) executor->state_replaced();
  }
}

}  // namespace duet
