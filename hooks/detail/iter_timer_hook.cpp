#include "hooks/detail/iter_timer_hook.h"
#include <algorithm>
#include <chrono>
#include <cmath>
#include <c10/util/StringUtil.h>
#include "base/error.h"

namespace duet {

namespace {

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

IterTimerHook::IterTimerHook(int64_t window, std::function<double()> now)
    : window_(static_cast<std::size_t>(window)), now_(now ? std::move(now) : steady_seconds) {
  if (window < 1) {
    throw ConfigError(c10::str("[IterTimerHook] found window ", window, ", expected at least 1 step; raise it"));
  }
}

double IterTimerHook::mean(double Times::* field) const {
  double sum = 0;
  for (const Times& times : times_) sum += times.*field;
  return times_.empty() ? 0 : sum / static_cast<double>(times_.size());
}

double IterTimerHook::mean_step_seconds() const { return mean(&Times::step); }
double IterTimerHook::mean_data_seconds() const { return mean(&Times::data); }

double IterTimerHook::eta_seconds(const TrainContext& context) const {
  const int64_t done = context.progress.step - start_step_;
  const int64_t total = context.progress.run_length();
  if (done <= 0 || total <= 0) return std::nan("");
  const auto left = static_cast<double>(std::max<int64_t>(total - context.progress.step, 0));
  return (now_() - train_start_) / static_cast<double>(done) * left;
}

void IterTimerHook::before_train(TrainContext& context) {
  times_.clear();
  mark_ = train_start_ = now_();
  start_step_ = context.progress.step;
  // Removed before this hook or the context can go.
  context.log.gauge("eta", [this, &context] { return eta_seconds(context); });
}

void IterTimerHook::after_train(TrainContext& context) { context.log.remove_gauge("eta"); }

void IterTimerHook::before_train_epoch(TrainContext& /*context*/) { mark_ = now_(); }

void IterTimerHook::before_train_iter(TrainContext& context) {
  // A loop of the user's own calls neither of the points above.
  if (!mark_) mark_ = now_() - context.step.data_seconds;
}

void IterTimerHook::after_train_iter(TrainContext& context) {
  const double now = now_();
  context.step.seconds = now - *mark_;
  mark_ = now;
  times_.push_back({context.step.seconds, context.step.data_seconds});
  if (times_.size() > window_) times_.pop_front();
}

void IterTimerHook::before_val(TrainContext& /*context*/) { val_start_ = now_(); }

void IterTimerHook::after_val(TrainContext& /*context*/) {
  if (mark_) *mark_ += now_() - val_start_;
}

}  // namespace duet
