#include "hooks/nan_guard_hook.h"
#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/stack.h>
#include <c10/util/StringUtil.h>
#include "base/error.h"
#include "base/log.h"
#include "checkpoint/checkpoint.h"
#include "core/task.h"
#include "hooks/detail/value_history.h"

namespace duet {

namespace {

bool may_be_bad(const at::Tensor& tensor) {
  return tensor.defined() && (tensor.is_floating_point() || tensor.is_complex()) && tensor.numel() > 0;
}

// Names of the tensors that are not finite (or, with nan_only, hold a NaN), read from the device at once.
std::vector<std::string> bad_names(const NamedTensors& tensors, bool nan_only = false) {
  const at::NoGradGuard no_grad;
  std::vector<std::string> names;
  std::vector<at::Tensor> flags;
  for (const auto& [name, tensor] : tensors) {
    if (!may_be_bad(tensor)) continue;
    names.push_back(name);
    flags.push_back(nan_only ? at::isnan(tensor).any() : at::isfinite(tensor).all().logical_not());
  }
  if (flags.empty()) return {};
  const at::Tensor bad = at::stack(flags).cpu();
  std::vector<std::string> found;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (bad.const_data_ptr<bool>()[i]) found.push_back(names[i]);
  }
  return found;
}

// "3 of the weights, 'a' the first"; adds nothing if there is none.
void mention(std::string& text, const char* one, const char* many, const std::vector<std::string>& names) {
  if (names.empty()) return;
  if (!text.empty()) text += ", ";
  text += names.size() == 1 ? c10::str(one, " '", names.front(), "'")
                            : c10::str(names.size(), " ", many, " from '", names.front(), "' on");
}

std::vector<std::string> bad_weights(const Task& task) { return bad_names(task.named_parameters()); }

// An infinity may be meant: the mask of an attention is a buffer.
std::vector<std::string> bad_buffers(const Task& task) { return bad_names(task.named_buffers(), /*nan_only=*/true); }

std::string weights_text(const Task& task) {
  std::string text;
  mention(text, "the weight", "weights", bad_weights(task));
  mention(text, "the buffer", "buffers", bad_buffers(task));
  return text;
}

// What is not finite after the last step, in the order of a step.
std::string scan(const TrainContext& context) {
  std::string text;
  if (context.step.result != nullptr) {
    NamedTensors values = {{"loss", context.step.loss()}};
    values.insert(values.end(), context.step.result->log.begin(), context.step.result->log.end());
    values.emplace_back("grad_norm", context.step.result->grad_norm);
    mention(text, "the value", "values", bad_names(values));
  }
  NamedTensors gradients;
  for (const auto& [name, parameter] : context.task.named_parameters()) gradients.emplace_back(name, parameter.grad());
  mention(text, "the gradient", "gradients", bad_names(gradients));
  const std::string weights = weights_text(context.task);
  if (!weights.empty()) text += (text.empty() ? "" : ", ") + weights;
  return text.empty() ? "nothing any more" : text;
}

// All numbers of some tensors on the device.
at::Tensor joined(std::vector<at::Tensor> values) {
  const at::NoGradGuard no_grad;
  for (at::Tensor& value : values) value = value.reshape({-1});
  return at::cat(values).to(at::kDouble);
}

std::size_t history_length(const NaNGuardHookOptions& options) {
  return static_cast<std::size_t>(std::max<int64_t>(options.interval, 1));
}

constexpr const char* kWayOut =
    "lower the learning rate, clip gradients, look at the data, or let such steps change nothing with non_finite: "
    "skip";

}  // namespace

const OptionFields& NaNGuardHookOptions::fields() {
  using O = NaNGuardHookOptions;
  static const OptionFields kFields = OptionFields::of<O>("NaNGuardHook", [](const FieldAdder<O>& add) {
    add("interval", &O::interval, "steps between two looks").in(at_least(1));
    add("action", &O::action, "what a loss that is not finite leads to").one_of({"raise", "stop", "warn"});
  });
  return kFields;
}

NaNGuardHook::NaNGuardHook(NaNGuardHookOptions options) : options_(std::move(options)) {
  options_.validate();
  restart(0);
}

NaNGuardHook::~NaNGuardHook() = default;

void NaNGuardHook::before_train(TrainContext& context) { restart(context.progress.step); }

void NaNGuardHook::restart(int64_t step) {
  losses_ = std::make_unique<ValueHistory>(history_length(options_));
  norms_ = std::make_unique<ValueHistory>(history_length(options_));
  watch_start_ = step;
}

// Runs when a step runs op by op or is recorded, and adds nothing to it: whether steps may be skipped stays the
// same.
void NaNGuardHook::in_step(StepView& context) { may_skip_ = context.skipped.defined(); }

void NaNGuardHook::after_train_iter(TrainContext& context) {
  if (may_skip_) return;
  losses_->add(context.step.loss());
  if (context.step.result->grad_norm.defined()) norms_->add(context.step.result->grad_norm);
  if (context.progress.step - watch_start_ >= options_.interval) look(context);
}

int64_t NaNGuardHook::first_bad_step() {
  std::vector<at::Tensor> parts;
  for (ValueHistory* history : {losses_.get(), norms_.get()}) {
    std::vector<at::Tensor> values;
    history->unread(values);
    if (!values.empty()) parts.push_back(joined(std::move(values)));
  }
  if (parts.empty()) return 0;
  const at::Tensor numbers = joined(std::move(parts)).cpu();
  const double* const first = numbers.const_data_ptr<double>();
  const double* const norms = losses_->take(first);
  const double* const last = norms_->take(norms);
  const auto bad_in = [](const double* from, const double* to) {
    return std::find_if(from, to, [](double value) { return !std::isfinite(value); }) - from;
  };
  const int64_t bad_loss = bad_in(first, norms), bad_norm = bad_in(norms, last);
  const int64_t steps = norms - first;
  const int64_t bad = last > norms ? std::min(bad_loss, bad_norm) : bad_loss;
  return bad < steps ? watch_start_ + bad + 1 : 0;
}

void NaNGuardHook::look(TrainContext& context) {
  const int64_t bad = first_bad_step();
  restart(context.progress.step);
  if (bad == 0) return;
  const std::string text =
      c10::str("[NaNGuardHook] found loss or gradient norm not finite at step ", bad, ", looked at after step ",
               context.progress.step, " (not finite by then: ", scan(context), "), expected finite numbers; ", kWayOut);
  if (options_.action == "raise") throw NonFiniteError(text);
  if (context.is_main) log_warning(text);  // the values are those of all ranks
  if (options_.action == "stop") context.control.request_stop(c10::str("step ", bad, " was not finite"));
}

void NaNGuardHook::before_save_checkpoint(TrainContext& context) {
  const std::string bad = weights_text(context.task);
  if (bad.empty()) return;
  const std::string text =
      c10::str("[NaNGuardHook] found ", bad, " not finite after step ", context.progress.step,
               ", expected finite weights to save; go on from an earlier checkpoint and ", kWayOut);
  if (options_.action == "raise") throw NonFiniteError(text);
  throw SaveRefused(text);
}

void NaNGuardHook::after_train(TrainContext& context) {
  if (context.control.error.empty()) look(context);
}

}  // namespace duet
