#include "graph/kernels/fast_kernels.h"
#include <string>
#include <ATen/Version.h>

// As ATen chooses: a GELU has its vectors' width, and ATEN_CPU_CAPABILITY=avx2 imitates a CPU without AVX-512.

namespace duet {

namespace {

template <class Kernel>
Kernel atens_choice(Kernel avx512, Kernel avx2) {
  static const std::string capability = at::get_cpu_capability();
  if (capability == "AVX512") return avx512;
  return capability == "AVX2" ? avx2 : Kernel{};
}

}  // namespace

GemmKernel fast_gemm_kernel() { return atens_choice(gemm_kernel_avx512(), gemm_kernel_avx2()); }

GeluKernels fast_gelu_kernels() { return atens_choice(gelu_kernels_avx512(), gelu_kernels_avx2()); }

}  // namespace duet
