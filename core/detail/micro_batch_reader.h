#pragma once

#include <cstdint>
#include <vector>
#include "base/detail/device_copy.h"
#include "core/step_observer.h"
#include "core/task.h"
#include "data/data_source.h"

namespace duet {

// From a data source to the micro-batches of a step: reads them, asks the task for their weights and brings them to the
// device.
class MicroBatchReader {
 public:
  MicroBatchReader(Task& task, at::Device device) : task_(task), device_(device), copy_(device) {}

  // Up to `count`, fewer at the end of the data. `step` is named in errors.
  MicroBatches read(DataSource& data, int64_t count, int64_t step);
  // Of batches that were read elsewhere. Weights are taken while a batch still lies on the host. Micro-batches of
  // weight 0 are left out: a mean over nothing, such as a loss all of whose labels are ignored, is NaN.
  // Throws DataError for a weight that is no count, or a tensor that requires a gradient.
  MicroBatches prepare(std::vector<Batch> batches, int64_t step);

  // That the last read() waited for the data.
  double seconds() const { return seconds_; }

  at::Device device() const { return device_; }
  Batch to_device(const Batch& batch) { return copy_.to_device(batch); }

 private:
  double weight_of(const Batch& batch, int64_t step) const;
  void warn_of_weightless(const MicroBatches& micro_batches, int64_t step);

  Task& task_;
  at::Device device_;
  DeviceCopy copy_;
  double seconds_ = 0;
  bool warned_of_weightless_ = false;
};

}  // namespace duet
