#include "hooks/throughput_hook.h"
#include <cmath>
#include <utility>
#include <c10/util/StringUtil.h>
#include "base/log.h"
#include "core/detail/flop_counter.h"
#include "core/task.h"
#include "hooks/detail/shared.h"

namespace duet {

const OptionFields& ThroughputHookOptions::fields() {
  using O = ThroughputHookOptions;
  return described<O>("ThroughputHook", [](const auto& add) {
    add("peak_flops", &O::peak_flops, "operations per second that one device can do; 0: measured").in(at_least(0));
  });
}

ThroughputHook::ThroughputHook(const ThroughputHookOptions& options) : options_(options) { check_options(options_); }
ThroughputHook::~ThroughputHook() = default;

double ThroughputHook::Window::take() {
  const Window taken = std::exchange(*this, {});
  return taken.amount > 0 && taken.seconds > 0 ? taken.amount / taken.seconds : std::nan("");
}

void ThroughputHook::before_train(TrainContext& context) {
  tokens_ = steps_ = {};
  // Removed before this hook can go.
  context.log.gauge("tokens_per_second", [this] { return tokens_.take(); });
  context.log.gauge("flops_per_step", [this] { return flops_ > 0 ? flops_ : std::nan(""); });
  context.log.gauge("mfu", [this] { return steps_.take() * flops_ / peak_; });
}

void ThroughputHook::after_train(TrainContext& context) {
  counter_.reset();
  for (const char* name : {"tokens_per_second", "flops_per_step", "mfu"}) context.log.remove_gauge(name);
}

// A replay on a device shows no ops: the step is one of the first, or of another signature.
void ThroughputHook::before_train_iter(TrainContext& /*context*/) {
  if (flops_ == 0) counter_ = std::make_unique<FlopCounter>();
}

void ThroughputHook::after_train_iter(TrainContext& context) {
  if (counter_) publish(context);
  double tokens = 0, own = 0;
  for (const Batch& batch : context.step.micro_batches->batches) {
    const at::Tensor& first = batch.items().front().second;
    own += static_cast<double>(batch.size());
    if (first.dim() == 2 && at::isIntegralType(first.scalar_type(), /*includeBool=*/false))
      tokens += static_cast<double>(first.numel());
  }
  const auto all = static_cast<double>(context.step.micro_batches->samples());
  if (own > 0) tokens_.amount += tokens * all / own;
  tokens_.seconds += context.step.seconds;
  steps_.amount += flops_ > 0 ? 1 : 0;
  steps_.seconds += flops_ > 0 ? context.step.seconds : 0;
}

void ThroughputHook::publish(TrainContext& context) {
  flops_ = counter_->flops();
  const at::ScalarType dtype = counter_->dtype();
  counter_.reset();
  if (flops_ == 0) return;
  PeakFlops peak{options_.peak_flops, "peak_flops of the config"};
  const double began = steady_seconds();
  if (peak.per_second == 0) peak = measure_peak_flops(device_of(context.task), dtype);
  const double measuring = steady_seconds() - began;  // the clock counts it to the next step
  tokens_.seconds -= measuring;
  steps_.seconds -= measuring;
  peak_ = peak.per_second;
  if (!context.is_main) return;
  log_info(
      c10::str("[ThroughputHook] ", flops_ / 1e9, " GFLOP per step; mfu is of ", peak_ / 1e9, " GFLOP/s: ", peak.from));
}

}  // namespace duet
