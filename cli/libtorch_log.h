#pragma once

namespace duet {

// For one of several processes: LibTorch shows errors of its own only. c10d warns of every lost connection with a stack
// trace, while an error of ours names the lost rank. What LibTorch warns of on this thread goes into our log instead.
// TORCH_CPP_LOG_LEVEL decides where it is set, as in Python.
void quiet_libtorch();

}  // namespace duet
