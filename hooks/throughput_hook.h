#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include "../base/options.h"
#include "../core/hook.h"

namespace duet {

class FlopCounter;

struct ThroughputHookOptions {
  double peak_flops = 0;  // operations per second of one device, for mfu; 0: measured when training begins

  static const OptionFields& fields();
};

// How fast training is, as gauges of LoggerHook's lines, since the line before:
//
//   samples_per_second  LoggerHook's own, of all ranks together
//   tokens_per_second   of all ranks, where the first tensor of a batch is whole numbers [samples, tokens]
//   flops_per_step      of this rank: products, convolutions and attention of the first step that ran op by op, counted
//                       from its ops (core/detail/flop_counter.h)
//   mfu                 share of peak_flops that these are of the time of the steps
//
// Of steps with other shapes than the first one's only their time counts. The log says what the peak was taken from.
class ThroughputHook : public Hook {
 public:
  // Throws ConfigError for options out of range.
  explicit ThroughputHook(const ThroughputHookOptions& options = {});
  ~ThroughputHook() override;

  std::string name() const override { return "throughput"; }
  int priority() const override { return kNormal + 5; }  // after the clock, before the lines

  void before_train(TrainContext& context) override;
  void before_train_iter(TrainContext& context) override;
  void after_train_iter(TrainContext& context) override;
  void after_train(TrainContext& context) override;

 private:
  void publish(TrainContext& context);

  struct Window {
    double amount = 0, seconds = 0;
    // NaN without anything; begins anew.
    double take();
  };

  ThroughputHookOptions options_;
  std::unique_ptr<FlopCounter> counter_;  // of the step that runs
  double flops_ = 0;                      // of a step; 0: not known yet
  double peak_ = 0;
  Window tokens_, steps_;
};

}  // namespace duet
