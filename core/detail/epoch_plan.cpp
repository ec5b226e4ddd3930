#include "core/detail/epoch_plan.h"
#include <algorithm>
#include <c10/util/StringUtil.h>
#include "base/detail/stopwatch.h"
#include "base/log.h"
#include "core/detail/rank_sync.h"

namespace duet {

bool EpochPlan::limits_reached() const {
  return (options_.max_steps > 0 && progress_.step >= options_.max_steps) ||
         (options_.max_epochs > 0 && progress_.epoch >= options_.max_epochs);
}

void EpochPlan::forget() {
  length_ = left_out_ = 0;
  progress_.steps_per_epoch = 0;
  progress_.epoch_offset = 0;
}

void EpochPlan::next_epoch() {
  length_ = progress_.steps_per_epoch;
  left_out_ = 0;
}

void EpochPlan::leave_out_step() {
  ++left_out_;
  if (length_ <= 0) return;
  --length_;
  --progress_.epoch_offset;
}

// Sources that only estimate their length are taken by their word: a resumed run must plan what the unbroken one did.
void EpochPlan::make(const DataSource& data, RankSync& ranks) {
  forget();
  const int64_t length = ranks.agree_on_epoch(options_.steps_per_epoch(data));
  progress_.steps_per_epoch = length_ = length;
  if (length <= 0) return;
  const int64_t left = ranks.agree_on_epoch(steps_left(data) + 1) - 1;
  if (left < 0) return;
  length_ = progress_.step_in_epoch + left;
  progress_.epoch_offset = progress_.step + left - (progress_.epoch + 1) * length;
  if (progress_.epoch_offset == 0 || limits_reached() || !ranks.is_main()) return;
  log_warning(c10::str("[BaseTrainer] the ", progress_.step, " steps so far are not those of epochs of ", length,
                       " steps, as they come from here on (other data, ranks, batch_size, accumulate or limit): "
                       "schedules and hooks that count in epochs take all epochs for such; prefer to keep the global "
                       "batch, or let them count in steps"));
}

// -1: the source cannot tell.
int64_t EpochPlan::steps_left(const DataSource& data) const {
  const int64_t done = progress_.step_in_epoch;
  int64_t batches = data.batches_left();
  if (batches < 0) return -1;
  if (done == 0) return progress_.steps_per_epoch;
  if (const int64_t limit = options_.limit_train_batches; limit > 0) {
    batches = std::clamp<int64_t>(limit - done * options_.accumulate, 0, batches);
  }
  return (batches + options_.accumulate - 1) / options_.accumulate;
}

int64_t EpochPlan::next_micro_batches() const {
  const int64_t limit = options_.limit_train_batches;
  if (limit <= 0) return options_.accumulate;
  return std::min(options_.accumulate, limit - (progress_.step_in_epoch + left_out_) * options_.accumulate);
}

void EpochPlan::watch_time() {
  const double limit = options_.max_seconds;
  if (limit <= 0) return;
  control_.watch([this, limit, time = Stopwatch()] {
    if (time.seconds() >= limit) control_.interrupt(c10::str("the time limit of ", limit, " s is reached"));
  });
}

}  // namespace duet
