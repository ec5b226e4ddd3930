#include "core/step_observer.h"

namespace duet {

int64_t MicroBatches::samples() const {
  int64_t count = samples_elsewhere;
  for (const Batch& batch : batches) count += batch.size();
  return count;
}

}  // namespace duet
