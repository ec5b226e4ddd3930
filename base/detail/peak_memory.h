#pragma once

#include <cstdint>
#include <c10/core/Device.h>

namespace duet {

// Most memory in use since reset_peak_bytes(): of the process on the CPU, of LibTorch's allocator on a GPU.
int64_t peak_bytes(at::Device device);
void reset_peak_bytes(at::Device device);

}  // namespace duet
