#include "tests/device/waits.h"
#include <atomic>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

namespace {

std::atomic<int64_t> count{0};

}  // namespace

namespace duet::testing {

int64_t waits() { return count; }

}  // namespace duet::testing

// A program's own functions come before those of the libraries it loads, LibTorch's calls of them included.
#define DUET_COUNTED(name, parameters, arguments)                                         \
  cudaError_t name parameters {                                                           \
    static auto* const next = reinterpret_cast<decltype(&name)>(dlsym(RTLD_NEXT, #name)); \
    ++count;                                                                              \
    return next arguments;                                                                \
  }

extern "C" {

DUET_COUNTED(cudaDeviceSynchronize, (), ())
DUET_COUNTED(cudaStreamSynchronize, (cudaStream_t stream), (stream))
DUET_COUNTED(cudaEventSynchronize, (cudaEvent_t event), (event))
DUET_COUNTED(cudaMemcpy, (void* to, const void* from, size_t bytes, cudaMemcpyKind kind), (to, from, bytes, kind))

}  // extern "C"
