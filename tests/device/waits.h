#pragma once

#include <cstdint>

namespace duet::testing {

// Calls of the CUDA runtime in this process that make the host wait for the device, whoever made them. A program that
// links waits.cpp counts them.
int64_t waits();

}  // namespace duet::testing
