#pragma once

#include <ATen/record_function.h>

#include <cstdint>

namespace duet {

// While it lives, every hook point of this thread is an NVTX range "hook:<name>:<point>", and so is every step
// between begin_step() and end_step(). Private to hooks/.
//
// NVTX ranges are a stack, but a step begins in the middle of one hook point and ends in that of another. So both
// functions end the range of the point that runs now.
class NvtxRanges {
 public:
  // Throws ConfigError unless this LibTorch is one with CUDA.
  NvtxRanges();
  ~NvtxRanges();
  NvtxRanges(const NvtxRanges&) = delete;
  NvtxRanges& operator=(const NvtxRanges&) = delete;

  void begin_step(int64_t step);
  void end_step();

 private:
  at::CallbackHandle callback_;
  bool in_step_ = false;
};

}  // namespace duet
