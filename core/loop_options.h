#pragma once

#include <cstdint>
#include <string>
#include "../base/options.h"

namespace duet {

class DataSource;

struct LoopOptions {
  int64_t max_steps = 0;      // 0: no limit by steps
  int64_t max_epochs = 0;     // 0: no limit by epochs; one of the two limits must be set to call train()
  double max_seconds = 0;     // time that train() may take before it is interrupted, state saved; 0: no limit
  int64_t accumulate = 1;     // micro-batches per step; the last step of an epoch may have fewer
  int64_t val_interval = 0;   // steps between validations, and one after the run's last; 0: once per epoch
  bool val_by_epoch = false;  // val_interval counts epochs
  // Micro-batches of an epoch or a pass; 0: all.
  int64_t limit_train_batches = 0, limit_val_batches = 0, limit_test_batches = 0, limit_predict_batches = 0;
  std::string work_dir{};  // where hooks write; empty: nowhere

  static const OptionFields& fields();
  // Throws ConfigError naming the field and its range.
  void validate() const { check_options(*this); }
  // Steps that an epoch of `data` takes; 0: unknown.
  int64_t steps_per_epoch(const DataSource& data) const;
};

}  // namespace duet
