#pragma once

#include <memory>
#include <string>
#include "../base/options.h"
#include "../core/hook.h"

namespace duet {

class KernelClock;

struct ThroughputHookOptions {
  double peak_flops = 0;  // operations per second of one device, for mfu; 0: measured when training begins

  static const OptionFields& fields();
};

// Logs of each step, beside LoggerHook's samples_per_second:
//
//   tokens_per_second   of all ranks, where the first tensor of a batch is whole numbers [samples, tokens]
//   flops_per_step      of this rank, as torch.utils.flop_counter counts: of the first step that shows its ops
//   mfu                 the share of peak_flops that these are of the time of the step, whatever its shapes
//
// The log says what the peak was taken from.
class ThroughputHook : public Hook {
 public:
  explicit ThroughputHook(const ThroughputHookOptions& options = {});
  ~ThroughputHook() override;

  std::string name() const override { return "throughput"; }
  int priority() const override { return kNormal + 5; }  // after the clock, before the lines

  void before_train_iter(TrainContext& context) override;
  void after_train_iter(TrainContext& context) override;
  void after_train(TrainContext& context) override;

 private:
  void end_count(TrainContext& context);

  ThroughputHookOptions options_;
  std::unique_ptr<KernelClock> clock_;  // of the step that runs, while flops_ is not known
  double flops_ = 0, peak_ = 0;
};

}  // namespace duet
