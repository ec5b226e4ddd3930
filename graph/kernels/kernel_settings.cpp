#include "graph/kernels/kernel_settings.h"
#include <limits>
#include <ATen/Context.h>
#include <ATen/Parallel.h>

namespace duet {

namespace {

// LibTorch can set this mode but not tell it.
bool flushes_denormals() {
  const volatile float smallest = std::numeric_limits<float>::min();
  const volatile float half = smallest / 2;
  return half == 0;
}

}  // namespace

KernelSettings kernel_settings() {
  const auto precision = at::globalContext().float32Precision(at::Float32Backend::MKLDNN, at::Float32Op::MATMUL);
  return {at::get_num_threads(), static_cast<int>(precision), flushes_denormals()};
}

}  // namespace duet
