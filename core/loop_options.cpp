#include "core/loop_options.h"

#include <c10/util/StringUtil.h>
#include "data/data_source.h"
#include "base/error.h"

#include <algorithm>
#include <cmath>

namespace duet {

void LoopOptions::validate() const {
  const auto check = [](const char* field, int64_t value, int64_t low) {
    if (value < low) {
      throw ConfigError(c10::str("[LoopOptions] ", field, " is ", value, ", expected an integer >= ", low));
    }
  };
  check("max_steps", max_steps, 0);
  check("max_epochs", max_epochs, 0);
  check("accumulate", accumulate, 1);
  check("val_interval", val_interval, 0);
  check("limit_train_batches", limit_train_batches, 0);
  check("limit_val_batches", limit_val_batches, 0);
  check("limit_test_batches", limit_test_batches, 0);
  check("limit_predict_batches", limit_predict_batches, 0);
  if (!(max_seconds >= 0 && std::isfinite(max_seconds))) {
    throw ConfigError(c10::str("[LoopOptions] max_seconds is ", max_seconds, ", expected seconds >= 0; 0 sets no limit"));
  }
}

int64_t LoopOptions::steps_per_epoch(const DataSource& data) const {
  int64_t batches = data.batches_per_epoch();
  if (limit_train_batches > 0) batches = batches > 0 ? std::min(batches, limit_train_batches) : limit_train_batches;
  return (batches + accumulate - 1) / accumulate;
}

}  // namespace duet
