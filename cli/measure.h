#pragma once

#include <duet/core/hook.h>
#include <duet/core/peak_memory.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace duet {

class BaseTrainer;

// XXH3-128 over names and bytes of all parameters, then all buffers; 32 hex digits.
std::string weights_hash(BaseTrainer& trainer);

// What was measured of every update.
struct Measurements {
  std::vector<double> losses;
  std::vector<double> update_us;  // from before_train_iter to the end of the update
  std::vector<double> data_us;    // waiting for its data
};

struct Spread {
  double median = 0;
  double min = 0;
};
Spread spread(std::vector<double> values);  // zeros if empty

// Records loss and time of every update into `target`, which must outlive the trainer's run. Losses are cloned on the
// device and read every 50 updates: no sync per update. On a GPU, where a launch returns early, an update's time is the
// mean over those 50; validation and checkpoints end such a block, and are not part of it.
class MeasureHook : public Hook {
 public:
  // Asks the run to stop after `max_updates` updates; 0: never.
  explicit MeasureHook(Measurements& target, int64_t max_updates = 0) : target_(target), max_updates_(max_updates) {}

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
  int64_t max_updates_;
  std::vector<at::Tensor> pending_;
  Clock::time_point block_start_, update_start_;
};

}  // namespace duet
