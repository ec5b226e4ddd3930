#include "tests/cuda_stand_in/state.h"

// The driver and cuBLAS, as far as LibTorch calls them. Their products are launches that do nothing. Arguments aren't
// read, so none is declared.

using namespace duet::testing::cuda;

namespace {

struct Handle {
  cudaStream_t stream = nullptr;
};

// A failure is a status of cuBLAS's and no last error of the runtime's.
int product(const char* name, cudaStream_t stream) {
  State& state = State::get();
  const Lock lock(state.mutex);
  const cudaError_t refused = state.enter(name);
  const cudaError_t error = refused != cudaSuccess ? refused : state.launch(stream);
  if (error != cudaSuccess) cudaGetLastError();
  return error;
}

int make_handle(void** handle) {
  *handle = new Handle;
  return 0;
}

}  // namespace

#define DUET_NOTHING(name) \
  int name(...) { return 0; }
#define DUET_PRODUCT(name) \
  int name(void* handle, ...) { return product(#name, static_cast<const Handle*>(handle)->stream); }

extern "C" {

int cuCtxGetCurrent(void** context) {
  static int made;
  *context = &made;
  return 0;
}
DUET_NOTHING(cuCtxSetCurrent)
DUET_NOTHING(cuDeviceGet)
DUET_NOTHING(cuDeviceGetAttribute)
DUET_NOTHING(cuDevicePrimaryCtxRetain)
DUET_NOTHING(cuFuncGetAttribute)
DUET_NOTHING(cuFuncSetAttribute)
DUET_NOTHING(cuFuncSetCacheConfig)
DUET_NOTHING(cuGetErrorString)
DUET_NOTHING(cuLaunchCooperativeKernel)
DUET_NOTHING(cuLaunchKernel)
DUET_NOTHING(cuLinkAddData_v2)
DUET_NOTHING(cuLinkComplete)
DUET_NOTHING(cuLinkCreate_v2)
DUET_NOTHING(cuModuleGetFunction)
DUET_NOTHING(cuModuleLoad)
DUET_NOTHING(cuModuleLoadData)
DUET_NOTHING(cuModuleLoadDataEx)
DUET_NOTHING(cuModuleUnload)
DUET_NOTHING(cuOccupancyMaxActiveBlocksPerMultiprocessor)
DUET_NOTHING(cuPointerGetAttribute)
DUET_NOTHING(cuTensorMapEncodeTiled)
int cuDevicePrimaryCtxGetState(int, unsigned int* flags, int* active) {
  *flags = 0;
  *active = 1;
  return 0;
}

int cublasCreate_v2(void** handle) { return make_handle(handle); }
int cublasSetStream_v2(void* handle, cudaStream_t stream) {
  static_cast<Handle*>(handle)->stream = stream;
  return 0;
}
DUET_NOTHING(cublasDestroy_v2)
DUET_NOTHING(cublasSetWorkspace_v2)
DUET_NOTHING(cublasSetMathMode)
DUET_NOTHING(cublasSetPointerMode_v2)
int cublasGetMathMode(void*, int* mode) { return *mode = 0; }
int cublasGetPointerMode_v2(void*, int* mode) { return *mode = 0; }
DUET_PRODUCT(cublasSgemm_v2)
DUET_PRODUCT(cublasDgemm_v2)
DUET_PRODUCT(cublasSgemmEx)
DUET_PRODUCT(cublasGemmEx)
DUET_PRODUCT(cublasSgemv_v2)
DUET_PRODUCT(cublasDgemv_v2)
DUET_PRODUCT(cublasSdot_v2)
DUET_PRODUCT(cublasSgemmStridedBatched)
DUET_PRODUCT(cublasGemmStridedBatchedEx)

int cublasLtMatmulDescCreate(void** description, ...) { return make_handle(description); }
int cublasLtMatmulPreferenceCreate(void** preference) { return make_handle(preference); }
int cublasLtMatrixLayoutCreate(void** layout, ...) { return make_handle(layout); }
DUET_NOTHING(cublasLtMatmulDescDestroy)
DUET_NOTHING(cublasLtMatmulDescSetAttribute)
DUET_NOTHING(cublasLtMatmulPreferenceDestroy)
DUET_NOTHING(cublasLtMatmulPreferenceSetAttribute)
DUET_NOTHING(cublasLtMatrixLayoutDestroy)
DUET_NOTHING(cublasLtMatrixLayoutSetAttribute)
int cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*, void*, int, void*, int* found) {
  *found = 1;
  return 0;
}
int cublasLtMatmul(void*, void*, const void*, const void*, void*, const void*, void*, const void*, const void*, void*,
                   void*, void*, const void*, void*, size_t, cudaStream_t stream) {
  return product("cublasLtMatmul", stream);
}

}  // extern "C"
