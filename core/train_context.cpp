#include "core/train_context.h"
#include <algorithm>
#include <array>
#include <ATen/ops/scalar_tensor.h>
#include <c10/util/StringUtil.h>
#include "base/detail/text.h"
#include "base/error.h"
#include "base/log.h"
#include "core/detail/train_step.h"

namespace duet {

const char* to_string(Mode mode) { return mode == Mode::kEager ? "eager" : "graph"; }

Mode parse_mode(const std::string& text) {
  for (const Mode mode : {Mode::kEager, Mode::kGraph}) {
    if (text == to_string(mode)) return mode;
  }
  throw ConfigError("[parse_mode] found mode '" + text + "', expected eager or graph; correct the call");
}

namespace {

void check_number(const std::string& name, const at::Tensor& value) {
  if (value.defined() && value.numel() == 1) return;
  throw ConfigError(c10::str("[RunLog] found ", value.defined() ? c10::str("a tensor ", value.sizes()) : "nothing",
                             " for '", name, "', expected one number; reduce it to its mean"));
}

}  // namespace

void RunLog::operator()(const std::string& name, at::Tensor value) {
  check_number(name, value);
  for (auto& entry : values_) {
    if (entry.first != name) continue;
    entry.second = std::move(value);
    return;
  }
  values_.emplace_back(name, std::move(value));
}

void RunLog::operator()(const std::string& name, double value) { (*this)(name, at::scalar_tensor(value, at::kDouble)); }

void RunLog::put_results(const StepResult& result) {
  const auto before = static_cast<std::ptrdiff_t>(values_.size());
  const auto put = [this](const std::string& name, const at::Tensor& value) {
    if (value.defined()) values_.emplace_back(name, value);
  };
  put("loss", result.loss);
  for (const auto& [name, value] : result.log) {
    check_number(name, value);
    put(name, value);
  }
  put("grad_norm", result.grad_norm);
  std::rotate(values_.begin(), values_.begin() + before, values_.end());
}

RunLog::Listening RunLog::listen(ImageListener image, TextListener text, HistogramListener histograms) {
  std::erase_if(listeners_, [](const auto& one) { return one.expired(); });
  auto listener = std::make_shared<const Listener>(Listener{std::move(image), std::move(text), std::move(histograms)});
  listeners_.push_back(listener);
  return listener;
}

void RunControl::request_rollback(const std::string& reason, int64_t bad_step) {
  if (!rollback_reason.empty() && rollback_bad_step <= bad_step) return;
  rollback_reason = reason;
  rollback_bad_step = bad_step;
}

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

const at::Tensor& CurrentStep::output(const std::string& name, std::size_t micro_batch) const {
  require<ConfigError>(result != nullptr && !result->outputs.empty(),
                       "[TrainContext] found no outputs of the model at this point, expected them inside of a step and "
                       "after it, for a hook that asks for them; let its wants_outputs() return true");
  require<ConfigError>(micro_batch < result->outputs.size(),
                       c10::str("[TrainContext] found ", result->outputs.size(),
                                " micro-batches, expected one of number ", micro_batch, "; they count from 0"));
  for (const auto& [known, tensor] : result->outputs[micro_batch]) {
    if (known == name) return tensor;
  }
  throw ConfigError("[TrainContext] found no output '" + name + "' of the model, expected one of " +
                    join(keys_in(result->outputs[micro_batch])) + "; let training_step give it in StepOutput::outputs");
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
  static constexpr std::array kNames = {"none", "running", "finished", "stopped", "interrupted", "diverged", "failed"};
  return kNames.at(static_cast<std::size_t>(outcome));
}

const char* to_string(RunKind kind) {
  static constexpr std::array kNames = {"none", "training", "validation", "test", "prediction"};
  return kNames.at(static_cast<std::size_t>(kind));
}

NamedTensors StepResult::all() const {
  NamedTensors tensors;
  const auto add = [&tensors](const std::string& name, const at::Tensor& tensor) {
    if (tensor.defined()) tensors.emplace_back(name, tensor);
  };
  add("loss", loss);
  add("grad_norm", grad_norm);
  for (const auto& [name, tensor] : log) add(name, tensor);
  for (const NamedTensors& of_one : outputs) {
    for (const auto& [name, tensor] : of_one) add(name, tensor);
  }
  return tensors;
}

void RunControl::look() const {
  for (const std::function<void()>& look : watchers) look();
}

void RunControl::stop(const std::string& reason, RunOutcome how) {
  if (!stop_reason.empty()) return;
  stop_reason = reason.empty() ? "a hook asked" : reason;
  stop_outcome = how;
}

void RunControl::stop_diverged(const std::string& reason) {
  stop_reason = reason;
  stop_outcome = RunOutcome::kDiverged;
  if (outcome != RunOutcome::kNone && outcome != RunOutcome::kRunning) outcome = RunOutcome::kDiverged;
}

void RunControl::fail(const std::string& text) {
  if (error.empty()) error = text;
  outcome = RunOutcome::kFailed;
}

void TrainContext::warn_without_validation(const std::string& what) const {
  if (is_main && !control.validates) log_warning(what + " has no effect without validation data; give train() some");
}

int64_t MicroBatches::samples() const {
  int64_t count = samples_elsewhere;
  for (const Batch& batch : batches) count += batch.size();
  return count;
}

}  // namespace duet
