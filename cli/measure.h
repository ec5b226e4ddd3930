#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>
#include "base/device.h"
#include "core/hook.h"

namespace duet {

class BaseTrainer;

// XXH3-128 over names and bytes of all parameters, then all buffers; 32 hex digits.
std::string weights_hash(BaseTrainer& trainer);

// What was measured of every step.
struct Measurements {
  std::vector<double> losses;
  std::vector<double> step_us;  // from before_train_iter to the end of the step
  std::vector<double> data_us;  // waiting for its data
};

struct Spread {
  double median = 0;
  double min = 0;
};
Spread spread(std::vector<double> values);  // zeros if empty

// Records loss and time of every step into `target`, which must outlive the trainer's run. Losses are cloned on the
// device and read every 50 steps: no sync per step. On a GPU, where a launch returns early, a step's time is the
// mean over those 50; validation and checkpoints end such a block, and are not part of it.
class MeasureHook : public Hook {
 public:
  // Asks the run to stop after `max_steps` steps; 0: never.
  explicit MeasureHook(Measurements& target, int64_t max_steps = 0) : target_(target), max_steps_(max_steps) {}

  std::string name() const override { return "measure"; }
  int priority() const override { return kHighest; }

  void before_train_iter(TrainContext& context) override;
  void after_train_iter(TrainContext& context) override;
  void before_val(TrainContext&) override { flush(); }
  void before_save_checkpoint(TrainContext&) override { flush(); }
  void after_train(TrainContext& context) override;

 private:
  using Clock = std::chrono::steady_clock;
  void flush();

  Measurements& target_;
  int64_t max_steps_;
  std::vector<at::Tensor> pending_;
  Clock::time_point block_start_, step_start_;
};

}  // namespace duet
