#include "core/task.h"
#include "base/error.h"

namespace duet {

NamedTensors Task::validation_step(const Batch& batch) {
  StepOutput output = training_step(batch);
  NamedTensors result = std::move(output.log);
  result.emplace_back("loss", output.loss);
  return result;
}

NamedTensors Task::predict(const Batch& /*batch*/) {
  throw ConfigError("[Task] this task has no predict(); override it, or give make_task a prediction function");
}

}  // namespace duet
