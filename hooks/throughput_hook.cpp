#include "hooks/throughput_hook.h"
#include <c10/util/StringUtil.h>
#include "base/log.h"
#include "core/detail/kernel_clock.h"
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

void ThroughputHook::before_train_iter(TrainContext& /*context*/) {
  if (flops_ == 0) clock_ = std::make_unique<KernelClock>();
}

void ThroughputHook::after_train_iter(TrainContext& context) {
  if (clock_) end_count(context);
  if (flops_ > 0) context.log("flops_per_step", flops_);
  const double seconds = context.step.seconds;
  if (!(seconds > 0)) return;  // without IterTimerHook
  if (flops_ > 0) context.log("mfu", flops_ / seconds / peak_);
  double tokens = 0, samples = 0;
  for (const Batch& batch : context.step.micro_batches->batches) {
    const at::Tensor& first = batch.items().front().second;
    samples += static_cast<double>(batch.size());
    if (first.dim() == 2 && at::isIntegralType(first.scalar_type(), /*includeBool=*/false))
      tokens += static_cast<double>(first.numel());
  }
  const auto all = static_cast<double>(context.step.micro_batches->samples());
  if (tokens > 0) context.log("tokens_per_second", tokens * all / samples / seconds);
}

void ThroughputHook::after_train(TrainContext& /*context*/) { clock_.reset(); }

void ThroughputHook::end_count(TrainContext& context) {
  const KernelWork work = clock_->end_step();
  clock_.reset();
  flops_ = work.flops;
  if (flops_ == 0) return;
  const bool is_given = options_.peak_flops > 0;
  peak_ = is_given ? options_.peak_flops : measure_peak_flops(device_of(context.task), work.dtype);
  if (!context.is_main) return;
  log_info(c10::str("[ThroughputHook] ", flops_ / 1e9, " GFLOP per step; mfu is of ", peak_ / 1e9, " GFLOP/s: ",
                    is_given ? "peak_flops" : c10::str("products of ", work.dtype, " numbers, as measured")));
}

}  // namespace duet
