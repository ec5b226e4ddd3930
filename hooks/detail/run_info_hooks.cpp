#include "hooks/detail/run_info_hooks.h"
#include <algorithm>
#include <cmath>
#include <utility>
#include <ATen/CPUGeneratorImpl.h>
#include <c10/util/StringUtil.h>
#include <torch/headeronly/version.h>
#include "base/device.h"
#include "base/log.h"
#include "core/task.h"
#include "data/data_source.h"
#include "distributed/communicator.h"
#include "hooks/detail/shared.h"

namespace duet {

namespace {

void publish_highest_rate(TrainContext& context) {
  HyperParameters& numbers = context.hyper_parameters;
  if (numbers.group_count() < 2 || !numbers.has(0, "lr")) return;
  context.log.gauge("max_lr", [&numbers] {
    const double first = numbers.get(0, "lr");
    double most = first;
    for (std::size_t group = 1; group < numbers.group_count(); ++group) {
      if (numbers.has(group, "lr")) most = std::max(most, numbers.get(group, "lr"));
    }
    return most > first ? most : std::nan("");
  });
}

std::string run_line(const TrainContext& context) {
  const char* const trainer = context.mode == to_string(Mode::kGraph) ? "GraphTrainer" : "EagerTrainer";
  std::string text =
      c10::str("duet ", DUET_VERSION, " on LibTorch ", TORCH_VERSION, ": ", trainer, " on ",
               device_of(context.task).str(), ", seed ", at::detail::getDefaultCPUGenerator().current_seed());
  if (!context.communicator->is_single()) text += c10::str(", ", context.communicator->world_size(), " ranks");
  return text;
}

}  // namespace

void publish_rate(TrainContext& context) {
  HyperParameters& numbers = context.hyper_parameters;
  if (numbers.group_count() == 0 || !numbers.has(0, "lr")) return;
  context.log.gauge("lr", [&numbers] { return numbers.get(0, "lr"); });
}

// The first line of a run: before LoggerHook's own, which listens to texts from then on.
void RuntimeInfoHook::before_run(TrainContext& context) {
  if (context.is_main && !context.control.only_evaluates()) log_info(run_line(context));
}

void RuntimeInfoHook::publish_momentum(TrainContext& context) {
  HyperParameters& numbers = context.hyper_parameters;
  if (numbers.group_count() == 0) return;
  for (const char* name : {"momentum", "beta1"}) {
    if (!numbers.has(0, name)) continue;
    if (!momentum_->initial) momentum_->initial = numbers.get(0, name);
    context.log.gauge("momentum", [&numbers, name, momentum = momentum_] {
      const double now = numbers.get(0, name);
      momentum->moved = momentum->moved || now != momentum->initial;
      return momentum->moved ? now : std::nan("");
    });
    return;
  }
}

void RuntimeInfoHook::before_train(TrainContext& context) {
  const at::Device device = device_of(context.task);
  publish_rate(context);
  publish_highest_rate(context);
  publish_momentum(context);
  context.log.gauge("memory", [device] { return static_cast<double>(peak_bytes(device)) / 1048576; });
  if (context.is_main) context.log.text("runtime_info", run_line(context));
}

StateDict RuntimeInfoHook::state_dict() const {
  StateDict state;
  if (!momentum_->initial) return state;
  state.set("initial_momentum", StateValue(*momentum_->initial));
  state.set("momentum_moved", StateValue(momentum_->moved));
  return state;
}

void RuntimeInfoHook::load_state_dict(const StateDict& state) {
  Momentum loaded;
  if (state.has("initial_momentum")) loaded = {state.number("initial_momentum"), state.flag("momentum_moved")};
  *momentum_ = loaded;
}

IterTimerHook::IterTimerHook(std::function<double()> now) : now_(now ? std::move(now) : steady_seconds) {}

double IterTimerHook::eta_seconds(const TrainContext& context) const {
  const int64_t done = context.progress.step - start_step_;
  const int64_t total = context.progress.run_length();
  if (done <= 0 || total <= 0) return std::nan("");
  const auto left = static_cast<double>(std::max<int64_t>(total - context.progress.step, 0));
  return (now_() - train_start_) / static_cast<double>(done) * left;
}

void IterTimerHook::before_train(TrainContext& context) {
  mark_ = train_start_ = now_();
  epoch_start_.reset();
  start_step_ = context.progress.step;
  // Removed before this hook or the context can go.
  context.log.gauge("eta", [this, &context] { return eta_seconds(context); });
}

void IterTimerHook::after_train(TrainContext& context) { context.log.remove_gauge("eta"); }

void IterTimerHook::before_train_epoch(TrainContext& /*context*/) { mark_ = epoch_start_ = now_(); }

void IterTimerHook::after_train_epoch(TrainContext& context) {
  context.progress.epoch_seconds = epoch_start_ ? now_() - *epoch_start_ : 0;
  epoch_start_.reset();
}

void IterTimerHook::before_train_iter(TrainContext& context) {
  // A loop of the user's own calls neither of the points above.
  if (!mark_) mark_ = now_() - context.step.data_seconds;
}

void IterTimerHook::after_train_iter(TrainContext& context) {
  const double now = now_();
  context.step.seconds = now - *mark_;
  mark_ = now;
}

void IterTimerHook::before_val(TrainContext& /*context*/) { val_start_ = now_(); }

void IterTimerHook::after_val(TrainContext& /*context*/) {
  const double seconds = now_() - val_start_;
  if (mark_) *mark_ += seconds;
  if (epoch_start_) *epoch_start_ += seconds;
}

void DistSamplerSeedHook::before_train(TrainContext& context) {
  if (!context.is_main || warned_ || context.data == nullptr || context.data->shuffles().value_or(true)) return;
  warned_ = true;
  log_warning(
      "[DistSamplerSeedHook] the training data comes in the same order in every epoch, expected a new one each time; "
      "set shuffle: true, or remove this hook (sampler_seed) if the order is meant to stay");
}

}  // namespace duet
