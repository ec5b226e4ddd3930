#include <duet/graph/kernel_settings.h>

#include <ATen/Context.h>
#include <ATen/Parallel.h>

namespace duet {

KernelSettings kernel_settings() {
  const auto precision = at::globalContext().float32Precision(at::Float32Backend::MKLDNN, at::Float32Op::MATMUL);
  return {at::get_num_threads(), static_cast<int>(precision)};
}

}  // namespace duet
