#pragma once

#include <cstdint>
#include "core/train_context.h"
#include "core/trainer_options.h"
#include "data/data_source.h"

namespace duet {

class RankSync;

// How many steps an epoch takes, where the epochs of a run lie, all ranks alike, and when a limit is reached. A resumed
// run may be in an epoch whose first steps took other numbers of samples than those to come.
class EpochPlan {
 public:
  EpochPlan(const LoopOptions& options, TrainContext& context)
      : options_(options), progress_(context.progress), control_(context.control) {}

  // Before the run opens.
  void make(const DataSource& data, RankSync& ranks);
  // A loop of the user's own has no epochs that a trainer knows of.
  void forget();
  void next_epoch();

  // The data of a step have weight 0: the epoch, and so the run, has one step less.
  void leave_out_step();
  bool is_used_up() const { return length_ > 0 && progress_.step_in_epoch >= length_; }
  bool limits_reached() const;
  // Micro-batches that the next step reads.
  int64_t next_micro_batches() const;

  // LoopOptions::max_seconds: interrupts a run that takes longer from now on.
  void watch_time();

 private:
  int64_t steps_left(const DataSource& data) const;

  const LoopOptions& options_;
  Progress& progress_;
  RunControl& control_;
  int64_t length_ = 0;    // steps of the epoch that runs now; 0: unknown
  int64_t left_out_ = 0;  // steps of it whose data had weight 0
};

}  // namespace duet
