#pragma once

#include <duet/core/batch.h>

#include <cstdint>
#include <string>
#include <vector>

namespace duet {

// Appends what a captured step depends on in its window: names, shapes, strides, dtypes, devices.
void append_window_key(const Window& window, std::vector<int64_t>& key);

// The same for people: "image float32[64, 1, 28, 28], target int64[64]", micro-batches joined by " + ".
std::string describe(const Window& window);

}  // namespace duet
