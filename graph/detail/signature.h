#pragma once

#include <cstdint>
#include <string>
#include <vector>
#include "core/detail/train_step.h"

namespace duet {

// Appends what a captured step depends on in its micro-batches: names, shapes, strides, dtypes, devices.
void append_inputs_key(const MicroBatches& micro_batches, std::vector<int64_t>& key);

// The same for people: "image float32[64, 1, 28, 28], target int64[64]", micro-batches joined by " + ".
std::string describe(const MicroBatches& micro_batches);

}  // namespace duet
