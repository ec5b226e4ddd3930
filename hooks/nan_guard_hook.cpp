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
#include "hooks/detail/non_finite_trace.h"
#include "hooks/detail/value_history.h"

namespace duet {

namespace {

// Names of the tensors that are not finite (or, with nan_only, hold a NaN), read from the device at once.
std::vector<std::string> bad_names(const NamedTensors& tensors, bool nan_only = false) {
  const at::NoGradGuard no_grad;
  std::vector<std::string> names;
  std::vector<at::Tensor> flags;
  for (const auto& [name, tensor] : tensors) {
    if (!tensor.defined() || tensor.numel() == 0 || !(tensor.is_floating_point() || tensor.is_complex())) continue;
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

// Adds "the weight 'a'" or "3 weights from 'a' on"; nothing if there is none.
void mention(std::string& text, const char* one, const char* many, const std::vector<std::string>& names) {
  if (names.empty()) return;
  if (!text.empty()) text += ", ";
  text += names.size() == 1 ? c10::str(one, " '", names.front(), "'")
                            : c10::str(names.size(), " ", many, " from '", names.front(), "' on");
}

// Adds the weights and buffers that are not finite.
void mention_weights(std::string& text, const Task& task) {
  mention(text, "the weight", "weights", bad_names(task.named_parameters()));
  // An infinity may be meant: the mask of an attention is a buffer.
  mention(text, "the buffer", "buffers", bad_names(task.named_buffers(), /*nan_only=*/true));
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
  mention_weights(text, context.task);
  return text.empty() ? "nothing any more" : text;
}

constexpr const char* kWayOut =
    "lower the learning rate, clip gradients, look at the data, or let such steps change nothing with non_finite: "
    "skip";

constexpr const char* kTraceHint = "; with trace: true the guard names op, module and samples";

}  // namespace

const OptionFields& NaNGuardHookOptions::fields() {
  using O = NaNGuardHookOptions;
  return described<O>("NaNGuardHook", [](const auto& add) {
    add("interval", &O::interval, "steps between two looks").in(at_least(1));
    add("action", &O::action, "what a loss that is not finite leads to").one_of({"raise", "stop", "warn", "rollback"});
    add("max_rollbacks", &O::max_rollbacks, "rollbacks of a run; the next one raises").in(at_least(1));
    add("trace", &O::trace, "look at every step, run one that is not finite again and name op, module and samples");
  });
}

NaNGuardHook::NaNGuardHook(NaNGuardHookOptions options) : options_(std::move(options)) {
  check_options(options_);
  if (options_.trace) {
    options_.interval = 1;
    trace_ = std::make_unique<NonFiniteTrace>();
  }
  restart(0);
}

NaNGuardHook::~NaNGuardHook() = default;

void NaNGuardHook::before_train(TrainContext& context) {
  restart(context.progress.step);
  skipped_told_ = rollbacks_ = 0;
  can_go_back_ = true;
}

void NaNGuardHook::after_load_checkpoint(TrainContext& context) { restart(context.progress.step); }

void NaNGuardHook::before_train_iter(TrainContext& context) {
  if (trace_) trace_->remember(context, /*copies_weights=*/!may_skip_);
}

void NaNGuardHook::restart(int64_t step) {
  const auto steps = static_cast<std::size_t>(options_.interval);
  losses_ = std::make_unique<ValueHistory>(steps);
  norms_ = std::make_unique<ValueHistory>(steps);
  watch_start_ = step;
}

// Runs when a step runs op by op or is recorded, and adds nothing to it: whether steps may be skipped stays the
// same.
void NaNGuardHook::in_step(StepView& context) { may_skip_ = context.skipped.defined(); }

void NaNGuardHook::after_train_iter(TrainContext& context) {
  if (trace_) trace(context);
  if (may_skip_) return;
  losses_->add(context.step.loss());
  if (context.step.result->grad_norm.defined()) norms_->add(context.step.result->grad_norm);
  if (context.progress.step - watch_start_ >= options_.interval) look(context);
}

bool NaNGuardHook::is_bad(const TrainContext& context) const {
  NamedTensors numbers = {{"loss", context.step.loss()}};
  for (const at::Tensor& gradient : context.step.gradients()) numbers.emplace_back("gradient", gradient);
  return !bad_names(numbers).empty();
}

// Loss scaling leaves out steps now and then whose numbers are all finite without it.
void NaNGuardHook::trace(TrainContext& context) {
  constexpr int64_t kMostTold = 8;
  is_bad_ = is_bad(context);  // the same on all ranks; what is found need not be
  cause_.clear();
  if (!is_bad_ || (may_skip_ && skipped_told_ == kMostTold)) return;
  const std::string found = trace_->text(context);
  if (!may_skip_ || found.empty()) {
    cause_ = found;
    return;
  }
  ++skipped_told_;
  log_warning(c10::str("[NaNGuardHook] step ", context.progress.step, " was not finite and changed no weight: ", found,
                       skipped_told_ == kMostTold ? "; further ones are not told" : ""));
}

// A step that was to raise has left the weights as they were before it.
void NaNGuardHook::on_exception(TrainContext& context) {
  if (!trace_ || !trace_->remembers() || context.control.error.find("[TrainStep]") == std::string::npos) return;
  if (const std::string found = trace_->text(context); !found.empty()) log_error("[NaNGuardHook] " + found);
}

int64_t NaNGuardHook::first_bad_step() const {
  const at::Tensor losses = losses_->unread(), norms = norms_->unread();
  if (!losses.defined()) return 0;
  const int64_t steps = losses.numel(), normed = norms.defined() ? norms.numel() : 0;
  const at::Tensor numbers = (normed > 0 ? at::cat({losses, norms}) : losses).cpu();
  const double* const loss = numbers.const_data_ptr<double>();
  const double* const norm = loss + steps;
  for (int64_t i = 0; i < steps; ++i) {
    if (!std::isfinite(loss[i]) || (i < normed && !std::isfinite(norm[i]))) return watch_start_ + i + 1;
  }
  return 0;
}

void NaNGuardHook::look(TrainContext& context) {
  const int64_t bad = is_bad_ ? context.progress.step : first_bad_step();
  is_bad_ = false;
  const std::string cause = std::exchange(cause_, {});
  restart(context.progress.step);
  if (bad == 0) return;
  const std::string text =
      c10::str("[NaNGuardHook] found loss or gradient norm not finite at step ", bad, ", looked at after step ",
               context.progress.step, " (not finite by then: ", scan(context), "), expected finite numbers; ",
               cause.empty() ? "" : cause + ". ", kWayOut, trace_ ? "" : kTraceHint);
  const bool goes_back = options_.action == "rollback" && can_go_back_ && context.data != nullptr &&
                         !context.work_dir.empty() && ++rollbacks_ <= options_.max_rollbacks;
  if (options_.action == "raise" || (options_.action == "rollback" && !goes_back)) throw NonFiniteError(text);
  if (context.is_main) log_warning(text);  // the values are those of all ranks
  if (goes_back) context.control.request_rollback(c10::str("step ", bad, " was not finite"));
  if (options_.action == "stop") context.control.request_stop(c10::str("step ", bad, " was not finite"));
}

void NaNGuardHook::before_save_checkpoint(TrainContext& context) {
  std::string bad;
  mention_weights(bad, context.task);
  if (bad.empty()) return;
  const std::string text =
      c10::str("[NaNGuardHook] found ", bad, " not finite after step ", context.progress.step,
               ", expected finite weights to save; go on from an earlier checkpoint and ", kWayOut);
  if (options_.action == "raise") throw NonFiniteError(text);
  throw SaveRefused(text);
}

void NaNGuardHook::after_train(TrainContext& context) {
  can_go_back_ = false;
  if (context.control.error.empty()) look(context);
}

}  // namespace duet
