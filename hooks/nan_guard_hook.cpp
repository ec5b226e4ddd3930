#include "hooks/nan_guard_hook.h"
#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <utility>
#include <ATen/ops/cat.h>
#include <c10/util/StringUtil.h>
#include "base/error.h"
#include "base/log.h"
#include "checkpoint/checkpoint.h"
#include "core/task.h"
#include "distributed/communicator.h"
#include "hooks/detail/loss_spikes.h"
#include "hooks/detail/not_finite.h"
#include "hooks/detail/shared.h"

namespace duet {

namespace {

constexpr const char* kWayOut =
    "lower the learning rate, clip gradients, look at the data, or let such steps change nothing with non_finite: skip";
constexpr const char* kSkipWayOut =
    "look at the data, lower the learning rate or clip gradients; with trace: true the guard names op, module and "
    "samples";

// What is not finite after the last step, in the order of a step.
std::string scan(const TrainContext& context) {
  std::vector<WatchedTensor> watched;
  if (context.step.result != nullptr) {
    watched.push_back({"value", "loss", context.step.loss()});
    for (const auto& [name, value] : context.step.result->log) watched.push_back({"value", name, value});
    watched.push_back({"value", "grad_norm", context.step.result->grad_norm});
  }
  for (const auto& [name, parameter] : context.task.named_parameters()) {
    watched.push_back({"gradient", name, parameter.grad()});
  }
  std::ranges::copy(watched_weights(context.task), std::back_inserter(watched));
  const std::string text = names_of(not_finite(watched));
  return text.empty() ? "nothing any more" : text;
}

// Infinite without loss scaling, and at the end of a run, where there is no step any more.
double last_loss_scale(const TrainContext& context) {
  const at::Tensor* const scale =
      context.step.result == nullptr ? nullptr : find(context.step.result->log, "loss_scale");
  return scale == nullptr ? std::numeric_limits<double>::infinity() : scale->item<double>();
}

// The newest checkpoint; none holds weights that are not finite.
std::string where_to_go_on(const TrainContext& context) {
  const std::vector<std::string> paths = context.work_dir.empty()
                                             ? std::vector<std::string>()
                                             : CheckpointStore(CheckpointStore::root_of(context.work_dir)).list();
  return paths.empty() ? "" : "; the last checkpoint, of finite weights, is '" + paths.front() + "'";
}

// What would be saved and is not finite on this rank.
struct BadState {
  std::string text;        // for an error; empty: nothing
  bool is_common = false;  // and is what ranks have in common, not a buffer of one alone
};

BadState bad_state(const TrainContext& context) {
  const std::vector<WatchedTensor> found = not_finite(watched_state(context.task, context.trainer.state_dict()));
  if (found.empty()) return {};
  return {c10::str("[NaNGuardHook] found ", names_of(found), " not finite after step ", context.progress.step,
                   ", expected finite numbers to save; go on from an earlier checkpoint and ", kWayOut),
          !std::ranges::all_of(found, &WatchedTensor::of_this_rank)};
}

}  // namespace

const OptionFields& NaNGuardHookOptions::fields() {
  using O = NaNGuardHookOptions;
  return described<O>("NaNGuardHook", [](const auto& add) {
    add("interval", &O::interval, "steps between two looks").in(at_least(1));
    add("action", &O::action, "what a loss that is not finite leads to").one_of({"raise", "stop", "warn", "rollback"});
    add("max_rollbacks", &O::max_rollbacks, "rollbacks of a run; the next one raises").in(at_least(1));
    add("trace", &O::trace, "look at every step, run one that is not finite again and name op, module and samples");
    add("max_consecutive_skips", &O::max_consecutive_skips,
        "steps in a row that may be skipped before `action`; 0: any number")
        .in(at_least(0));
    add("min_loss_scale", &O::min_loss_scale, "the least loss scale; below it `action`; 0: any").in(at_least(0.0));
    add("spike_threshold", &O::spike_threshold,
        "the highest modified z-score of a loss against those before it; 0: any")
        .in(at_least(0.0));
    add("spike_window", &O::spike_window, "losses that a loss is compared with").in(between(10, 100000));
    add("spike_action", &O::spike_action, "what a loss above spike_threshold leads to")
        .one_of({"raise", "stop", "warn", "rollback"});
  });
}

NaNGuardHook::NaNGuardHook(NaNGuardHookOptions options) : options_(std::move(options)) {
  check_options(options_);
  if (options_.trace) {
    options_.interval = 1;
    trace_ = std::make_unique<NonFiniteTrace>();
  }
  if (options_.spike_threshold > 0) {
    spikes_ = std::make_unique<LossSpikes>(static_cast<std::size_t>(options_.spike_window), options_.spike_threshold);
  }
}

NaNGuardHook::~NaNGuardHook() = default;

void NaNGuardHook::before_train(TrainContext& context) {
  restart(context);
  skipped_in_a_row_ = skipped_told_ = rollbacks_ = 0;
  can_go_back_ = true;
  run_start_ = context.progress.step;
  run_start_applied_ = applied_;
  context.log.gauge("skipped_steps", [this, &context] {
    if (!may_skip_) return std::nan("");
    return static_cast<double>(context.progress.step - context.hyper_parameters.applied());
  });
}

void NaNGuardHook::after_load_checkpoint(TrainContext& context) {
  restart(context);
  skipped_in_a_row_ = 0;
}

void NaNGuardHook::before_train_iter(TrainContext& context) {
  if (trace_) trace_->remember(context, /*copies_weights=*/!may_skip_);
}

void NaNGuardHook::restart(const TrainContext& context) {
  losses_.clear();
  norms_.clear();
  watch_start_ = context.progress.step;
  applied_ = context.hyper_parameters.applied();
}

// Runs when a step runs op by op or is recorded, and adds nothing to it: what it finds stays the same.
void NaNGuardHook::in_step(StepView& context) {
  may_skip_ = context.skipped.defined();
  scale_adapts_ = context.scale_adapts;
}

void NaNGuardHook::after_train_iter(TrainContext& context) {
  const std::optional<std::string> cause = trace_ ? trace(context) : std::nullopt;
  losses_.push_back(detached(context.step.loss()));
  if (context.step.result->grad_norm.defined()) norms_.push_back(detached(context.step.result->grad_norm));
  const bool counts_skips = may_skip_ && options_.max_consecutive_skips > 0;
  const int64_t interval =
      counts_skips ? std::min(options_.interval, options_.max_consecutive_skips) : options_.interval;
  if (context.progress.step - watch_start_ >= interval) look(context, cause);
}

// Loss scaling leaves out steps now and then whose numbers are all finite without it.
std::optional<std::string> NaNGuardHook::trace(TrainContext& context) {
  constexpr int64_t kMostTold = 8;
  std::vector<WatchedTensor> numbers = {{"value", "loss", context.step.loss()}};
  for (const at::Tensor& gradient : context.step.gradients()) numbers.push_back({"gradient", "", gradient});
  if (not_finite(numbers).empty()) return std::nullopt;  // the same on all ranks; what is found need not be
  if (may_skip_ && skipped_told_ == kMostTold) return "";
  std::string found = trace_->text(context);
  if (!may_skip_ || found.empty()) return found;
  ++skipped_told_;
  log_warning(
      c10::str("[NaNGuardHook] step ", context.progress.step, " was not finite and changed no weight: ", found));
  return found;
}

// A step that was to raise has left the weights as they were before it.
void NaNGuardHook::on_exception(TrainContext& context) {
  if (!trace_ || !trace_->remembers() || context.control.error.find("[TrainStep]") == std::string::npos) return;
  if (const std::string found = trace_->text(context); !found.empty()) log_error("[NaNGuardHook] " + found);
}

// Waits for the device, once.
void NaNGuardHook::look(TrainContext& context, const std::optional<std::string>& cause) {
  if (!context.control.rollback_reason.empty()) return;  // what is watched now goes
  std::vector<double> values[2];
  if (!losses_.empty()) {
    const at::Tensor losses = numbers_of(losses_), norms = numbers_of(norms_);
    const at::Tensor numbers = (norms.defined() ? at::cat({losses, norms}) : losses).cpu();
    const double* const all = numbers.const_data_ptr<double>();
    values[0].assign(all, all + losses.numel());
    values[1].assign(all + losses.numel(), all + numbers.numel());
  }
  if (spikes_) check_spikes(context, values[0]);  // first: numbers that are not finite may come of it
  if (context.control.rollback_reason.empty()) {
    may_skip_ ? check_skips(context) : check_finite(context, values[0], values[1], cause);
  }
  restart(context);
}

void NaNGuardHook::check_finite(TrainContext& context, const std::vector<double>& losses,
                                const std::vector<double>& norms, const std::optional<std::string>& cause) {
  int64_t bad = cause ? context.progress.step : 0;
  for (std::size_t i = 0; i < losses.size() && bad == 0; ++i) {
    const bool is_fine = std::isfinite(losses[i]) && (i >= norms.size() || std::isfinite(norms[i]));
    if (!is_fine) bad = watch_start_ + static_cast<int64_t>(i) + 1;
  }
  if (bad == 0) return;
  act(context, options_.action,
      {c10::str("[NaNGuardHook] found loss or gradient norm not finite at step ", bad, ", looked at after step ",
                context.progress.step, " (not finite by then: ", scan(context), "), expected finite numbers; ",
                cause.value_or("").empty() ? "" : *cause + ". ", kWayOut,
                trace_ ? "" : "; with trace: true the guard names op, module and samples"),
       c10::str("step ", bad, " was not finite"), bad});
}

void NaNGuardHook::check_skips(TrainContext& context) {
  const int64_t steps = context.progress.step - watch_start_;
  const bool any_applied = context.hyper_parameters.applied() > applied_;
  skipped_in_a_row_ = any_applied ? 0 : skipped_in_a_row_ + steps;
  const double scale = last_loss_scale(context);
  if (scale_adapts_ && scale < options_.min_loss_scale) {
    act(context, options_.action,
        {c10::str("[NaNGuardHook] found the loss scale at ", scale, " after step ", context.progress.step,
                  ", expected at least min_loss_scale ", options_.min_loss_scale,
                  ": steps are skipped whatever the scale, so their numbers are not finite without it either; ",
                  kSkipWayOut),
         "the loss scale fell below min_loss_scale", watch_start_ + 1});
  } else if (options_.max_consecutive_skips > 0 && skipped_in_a_row_ >= options_.max_consecutive_skips) {
    act(context, options_.action,
        {c10::str("[NaNGuardHook] found that none of the last ", skipped_in_a_row_, " steps up to step ",
                  context.progress.step,
                  " changed a weight, as their loss or gradients were not finite; expected fewer ",
                  "than max_consecutive_skips ", options_.max_consecutive_skips, "; ", kSkipWayOut),
         c10::str(skipped_in_a_row_, " steps in a row were skipped"), context.progress.step - skipped_in_a_row_ + 1});
    skipped_in_a_row_ = 0;
  }
}

void NaNGuardHook::check_spikes(TrainContext& context, const std::vector<double>& losses) {
  const std::optional<LossSpike> spike = spikes_->find(losses);
  if (!spike) return;
  const int64_t step = watch_start_ + static_cast<int64_t>(spike->at) + 1;
  act(context, options_.spike_action,
      {c10::str("[NaNGuardHook] found loss ", spike->loss, " at step ", step, ", looked at after step ",
                context.progress.step, ": ", spike->score, " deviations above the median ", spike->median, " of the ",
                options_.spike_window, " losses before it, expected at most spike_threshold ", options_.spike_threshold,
                "; lower the learning rate, clip gradients or look at the data"),
       c10::str("the loss of step ", step, " was a spike"), step});
}

void NaNGuardHook::act(TrainContext& context, const std::string& action, const Finding& found) {
  const bool goes_back = action == "rollback" && can_go_back_ && context.data != nullptr && !context.work_dir.empty() &&
                         ++rollbacks_ <= options_.max_rollbacks;
  const bool ends = action == "stop" || action == "raise" || (action == "rollback" && !goes_back);
  const std::string text = ends ? found.text + where_to_go_on(context) : found.text;
  if (ends && action != "stop") throw NonFiniteError(text);
  if (context.is_main) log_warning(text);  // the same on all ranks
  if (goes_back) context.control.request_rollback(found.reason, found.bad_step);
  if (action == "stop") context.control.stop_diverged(found.reason);
}

bool NaNGuardHook::act_together(TrainContext& context, bool is_found, const Finding& found) {
  try {
    run_on_all_ranks(*context.communicator, [&] {
      if (is_found) throw NonFiniteError(found.text);
    });
    return false;
  } catch (const NonFiniteError& error) {
    act(context, options_.action, {error.what(), found.reason, found.bad_step});
    return true;
  }
}

// What ranks have in common leads to the action, on all of them; a buffer may be bad on one alone. The checkpoints
// before have passed this, so that the newest one is good.
//
// No step is saved that nobody has looked at: good checkpoints would be rotated away behind it.
void NaNGuardHook::before_save_checkpoint(TrainContext& context) {
  if (context.progress.step > watch_start_) look(context);
  require<SaveRefused>(!context.control.has_gone_wrong(),
                       "[NaNGuardHook] found that training has diverged, expected a state to go on from");
  const BadState found = bad_state(context);
  const bool acts = options_.action == "raise" ? !found.text.empty() : found.is_common && options_.action != "warn";
  const int64_t step = context.progress.step;
  const std::string reason = c10::str("the state after step ", step, " is not finite");
  if (act_together(context, acts, {found.text, reason, step})) throw SaveRefused(reason);
  if (!found.text.empty()) throw SaveRefused(found.text + where_to_go_on(context));
}

void NaNGuardHook::after_train(TrainContext& context) {
  can_go_back_ = false;
  context.log.remove_gauge("skipped_steps");
  if (!context.control.error.empty()) return;
  try {
    const std::string& pending = context.control.rollback_reason;  // by a save after the last step
    if (!pending.empty()) act(context, "raise", {"[NaNGuardHook] found that " + pending + "; " + kWayOut, pending, 0});
    if (context.progress.step > watch_start_) look(context);
    check_run(context);
    // As the last save would, but before the log says how the run has ended.
    const BadState found = bad_state(context);
    act_together(context, found.is_common && options_.action != "warn", {found.text, "its weights are not finite", 0});
  } catch (const NonFiniteError& error) {
    context.control.fail(error.what());
    throw;
  }
}

// Loss scaling may leave out the first few steps of a run, until it has found its scale.
void NaNGuardHook::check_run(TrainContext& context) {
  constexpr int64_t kFewSteps = 20;
  const int64_t steps = context.progress.step - run_start_;
  if (!may_skip_ || steps <= 0 || context.hyper_parameters.applied() > run_start_applied_) return;
  act(context, steps < kFewSteps ? "warn" : options_.action,
      {c10::str("[NaNGuardHook] found that none of the ", steps,
                " steps of this run changed a weight, as their loss or gradients were not finite; ", kSkipWayOut),
       "no step changed a weight", run_start_ + 1});
}

StateDict NaNGuardHook::state_dict() const { return spikes_ ? spikes_->state_dict() : StateDict(); }

void NaNGuardHook::load_state_dict(const StateDict& state) {
  if (spikes_) spikes_->load_state_dict(state);
}

}  // namespace duet
