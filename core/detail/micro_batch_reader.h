#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include "base/batch.h"
#include "core/detail/train_step.h"
#include "core/task.h"
#include "core/train_context.h"
#include "data/data_source.h"

namespace duet {

// Moves batches to one device. Where the device has streams, host tensors are copied on a stream of their own, so that
// the copies of the next step run beside the kernels of this one; the stream that is current waits for them, the host
// does not. From memory that is not page-locked a copy holds the host up, but no longer behind the kernels before it.
class DeviceCopy {
 public:
  explicit DeviceCopy(at::Device device) : device_(device) {}

  // `batches` on the device, ready for the current stream, which waits once for all; tensors that are there already
  // are shared.
  std::vector<Batch> to_device(std::vector<Batch> batches);

 private:
  at::Device device_;
  std::optional<c10::Stream> stream_;  // taken at the first copy: a trainer that never copies needs none
  std::optional<c10::Event> done_;     // with the latest copies
};

// The next batch; nothing at the end of the data, or once the run is interrupted while it waits for it.
std::optional<Batch> next_batch(DataSource& data, const RunControl& control);

// From a data source to the micro-batches of a step: reads them, asks the task for their weights and brings them to the
// device.
class MicroBatchReader {
 public:
  MicroBatchReader(Task& task, at::Device device) : task_(task), device_(device), copy_(device) {}

  // Up to `count`, fewer at the end of the data; nothing if the run is interrupted while it waits for them: some may be
  // read then. `step` is named in errors.
  std::optional<MicroBatches> read(DataSource& data, int64_t count, int64_t step, const RunControl& control);
  // Up to `count` of what next() gives, until it gives nothing. Of a source that fills the same memory for each batch
  // every one has its own values.
  std::vector<Batch> collect(int64_t count, const std::function<std::optional<Batch>()>& next);
  // Before reading from it.
  void expect(const DataSource& source) {
    if (std::exchange(source_, &source) != &source) may_reuse_memory_ = true;
  }
  // Of batches that were read elsewhere. Weights are taken while a batch still lies on the host. Micro-batches of
  // weight 0 are left out: a mean over nothing, such as a loss all of whose labels are ignored, is NaN.
  // Throws DataError for a weight that is no count, or a tensor that requires a gradient.
  MicroBatches prepare(std::vector<Batch> batches, int64_t step);

  // That the last read() waited for the data.
  double seconds() const { return seconds_; }

  at::Device device() const { return device_; }
  // `batch` itself if it is there already.
  Batch to_device(const Batch& batch) { return copy_.to_device({batch}).front(); }

 private:
  double weight_of(const Batch& batch, int64_t step) const;
  void warn_of_weightless(const MicroBatches& micro_batches, int64_t step);

  Task& task_;
  at::Device device_;
  DeviceCopy copy_;
  double seconds_ = 0;
  const DataSource* source_ = nullptr;
  bool may_reuse_memory_ = true;  // the source, as far as its first window of micro-batches tells
  bool warned_of_weightless_ = false;
};

}  // namespace duet
