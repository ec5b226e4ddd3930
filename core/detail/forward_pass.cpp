#include "core/detail/forward_pass.h"
#include <functional>
#include <string>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include "base/detail/op_tap.h"
#include "base/detail/references.h"
#include "optim/detail/amp.h"

namespace duet {

namespace {

// Whether somebody else refers to the memory too: the batch, a weight, a state that the model carries on.
bool is_shared(const at::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() && (references_to(tensor) > 1 || tensor.storage().use_count() > 1);
}

}  // namespace

StepResult ForwardPass::run(const MicroBatches& micro_batches, StepObserver& /*observer*/) {
  const at::NoGradGuard no_grad;
  const AutocastGuard autocast(device_, autocast_);
  const Batch& batch = micro_batches.batches.front();
  StepResult result;
  result.log = kind_ == CodeKind::kValidation ? task_.validation_step(batch) : task_.predict(batch);
  for (auto& output : result.log) {
    if (is_shared(output.second)) output.second = output.second.clone();
  }
  return result;
}

void ForwardPass::append_key(std::vector<int64_t>& key) const {
  key.push_back(at::autocast::is_autocast_enabled(device_.type()) ? 1 : 0);  // asked for inside a step
  task_.append_key(key);
  const std::string task_key = task_.graph_key();
  if (!task_key.empty()) key.push_back(static_cast<int64_t>(std::hash<std::string>{}(task_key)));
}

ForwardPasses::ForwardPasses(Task& task, const Settings& settings)
    : evaluation_mode_(task),
      validation_(CodeKind::kValidation, task, settings),
      prediction_(CodeKind::kPrediction, task, settings) {}

void ForwardPasses::set_mode(Mode mode) {
  if (mode != mode_) settle();
  mode_ = mode;
}

NamedTensors ForwardPasses::run(CodeKind kind, const Batch& batch) {
  const auto evaluates = evaluation_mode_.scope();  // also for the key, which holds the flags
  // Asked for inside a step that is recorded or checked it is part of that.
  const Mode mode = OpTap::is_active() ? Mode::kEager : mode_;
  StepExecutor& executor = (kind == CodeKind::kValidation ? validation_ : prediction_).executors.in(mode);
  MicroBatches one;
  one.batches.push_back(batch);
  return executor.run(executor.choose(one, nobody_), one, nobody_).log;
}

void ForwardPasses::settle() {
  const std::vector<StepExecutor*> executors = graph_executors();
  if (executors.empty()) return;
  const auto evaluates = evaluation_mode_.scope();
  for (StepExecutor* executor : executors) executor->settle(nobody_);
}

std::vector<StepExecutor*> ForwardPasses::graph_executors() const {
  std::vector<StepExecutor*> executors;
  for (const Pass* pass : {&validation_, &prediction_}) {
    if (StepExecutor* made = pass->executors.made(Mode::kGraph)) executors.push_back(made);
  }
  return executors;
}

}  // namespace duet
