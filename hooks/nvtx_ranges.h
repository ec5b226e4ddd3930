#pragma once

#include <ATen/record_function.h>

#include <cstdint>

namespace duet {

// While it lives, every hook point of this thread is an NVTX range "hook:<name>:<point>", and so is every update
// between begin_update() and end_update(). Private to hooks/.
//
// NVTX ranges are a stack, but an update begins in the middle of one hook point and ends in that of another. So both
// functions end the range of the point that runs now.
class NvtxRanges {
 public:
  // Throws ConfigError unless this LibTorch is one with CUDA.
  NvtxRanges();
  ~NvtxRanges();
  NvtxRanges(const NvtxRanges&) = delete;
  NvtxRanges& operator=(const NvtxRanges&) = delete;

  void begin_update(int64_t update);
  void end_update();

 private:
  at::CallbackHandle callback_;
  bool in_update_ = false;
};

}  // namespace duet
