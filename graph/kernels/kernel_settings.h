#pragma once

namespace duet {

// What decides how LibTorch's CPU kernels round: kernels that were compared under other settings may not be used.
struct KernelSettings {
  int threads = 0;
  int precision = 0;               // of float products: a user may allow bfloat16 or TF32 in them
  bool flushes_denormals = false;  // of the calling thread, which other threads need not share
  bool operator==(const KernelSettings&) const = default;
};
KernelSettings kernel_settings();

}  // namespace duet
