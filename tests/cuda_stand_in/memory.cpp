#include <csignal>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <sys/mman.h>
#include <unistd.h>
#include "tests/cuda_stand_in/state.h"

// Memory, copies and the device itself.

using namespace duet::testing::cuda;

namespace {

bool is_pageable(State& state, const void* pointer) { return !state.is_device(pointer) && !state.is_pinned(pointer); }

cudaError_t copy(cudaStream_t stream, void* to, const void* from, size_t bytes) {
  State& state = State::get();
  const auto& capture = state.stream(stream).capture;
  if (capture != nullptr && (is_pageable(state, to) || is_pageable(state, from))) {
    state.invalidate(*capture);
    return state.violation(cudaErrorStreamCaptureUnsupported, "a copy from or to pageable memory in a capture");
  }
  return state.launch(stream, [=, &state] { std::memmove(state.seen(to), state.seen(from), bytes); });
}

cudaError_t fill(cudaStream_t stream, void* to, int value, size_t bytes) {
  State& state = State::get();
  return state.launch(stream, [=, &state] { std::memset(state.seen(to), value, bytes); });
}

// Pages that nobody may touch, and the same pages at another address for the stand-in.
std::optional<std::pair<void*, Block>> map_block(size_t bytes) {
  const int pages = memfd_create("memory of a device", 0);
  if (pages < 0) return std::nullopt;
  const bool sized = ftruncate(pages, static_cast<off_t>(bytes)) == 0;
  void* const seen =
      sized ? mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, pages, 0) : MAP_FAILED;
  void* const address = seen == MAP_FAILED ? MAP_FAILED : mmap(nullptr, bytes, PROT_NONE, MAP_SHARED, pages, 0);
  close(pages);
  if (address != MAP_FAILED) return std::pair{address, Block{bytes, static_cast<char*>(seen)}};
  if (seen != MAP_FAILED) munmap(seen, bytes);
  return std::nullopt;
}

// Says why the process ends. What it returns to faults once more, by the default action.
void say_why(int number, siginfo_t* fault, void*) {
  constexpr char kMessage[] = "the host touches memory of the device (tests/cuda_stand_in)\n";
  if (State::get().is_device(fault->si_addr)) (void)!write(STDERR_FILENO, kMessage, sizeof(kMessage) - 1);
  std::signal(number, SIG_DFL);
}

void watch_the_host() {
  struct sigaction action{};
  action.sa_sigaction = say_why;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGSEGV, &action, nullptr);
}

}  // namespace

extern "C" {

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  DUET_ENTER_UNSAFE("cudaMalloc");
  if (state.used_memory + static_cast<int64_t>(bytes) > state.total_memory) {
    return state.error(cudaErrorMemoryAllocation);
  }
  if (state.device_memory.empty()) watch_the_host();
  const auto block = map_block(bytes);
  if (!block) return state.error(cudaErrorMemoryAllocation);
  *pointer = block->first;
  state.device_memory[reinterpret_cast<uintptr_t>(block->first)] = block->second;
  state.used_memory += static_cast<int64_t>(bytes);
  return cudaSuccess;
}

cudaError_t cudaFree(void* pointer) {
  DUET_ENTER_UNSAFE("cudaFree");
  const auto found = state.device_memory.find(reinterpret_cast<uintptr_t>(pointer));
  if (found == state.device_memory.end()) {
    return pointer == nullptr ? cudaSuccess : state.error(cudaErrorInvalidValue);
  }
  const Block block = found->second;
  state.used_memory -= static_cast<int64_t>(block.bytes);
  munmap(pointer, block.bytes);
  munmap(block.seen, block.bytes);
  state.device_memory.erase(found);
  return cudaSuccess;
}

cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned int) {
  DUET_ENTER_UNSAFE("cudaHostAlloc");
  *pointer = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  state.host_memory[reinterpret_cast<uintptr_t>(*pointer)] = {bytes, static_cast<char*>(*pointer)};
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* pointer) {
  DUET_ENTER_UNSAFE("cudaFreeHost");
  state.host_memory.erase(reinterpret_cast<uintptr_t>(pointer));
  std::free(pointer);
  return cudaSuccess;
}
cudaError_t cudaHostRegister(void* pointer, size_t bytes, unsigned int) {
  DUET_ENTER_UNSAFE("cudaHostRegister");
  state.host_memory[reinterpret_cast<uintptr_t>(pointer)] = {bytes, static_cast<char*>(pointer)};
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* pointer) {
  DUET_ENTER_UNSAFE("cudaHostUnregister");
  state.host_memory.erase(reinterpret_cast<uintptr_t>(pointer));
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  DUET_ENTER("cudaMemGetInfo");
  *total = static_cast<size_t>(state.total_memory);
  *free = static_cast<size_t>(state.total_memory - state.used_memory);
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  State& state = State::get();
  const Lock lock(state.mutex);
  *attributes = {};
  attributes->type = state.is_device(pointer)   ? cudaMemoryTypeDevice
                     : state.is_pinned(pointer) ? cudaMemoryTypeHost
                                                : cudaMemoryTypeUnregistered;
  attributes->devicePointer = attributes->hostPointer = const_cast<void*>(pointer);
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  DUET_ENTER_UNSAFE("cudaMemcpy");
  return copy(nullptr, to, from, bytes);
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  DUET_ENTER("cudaMemcpyAsync");
  return copy(stream, to, from, bytes);
}
cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes, cudaStream_t stream) {
  DUET_ENTER("cudaMemcpyPeerAsync");
  return copy(stream, to, from, bytes);
}
cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  DUET_ENTER_UNSAFE("cudaMemset");
  return fill(nullptr, to, value, bytes);
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  DUET_ENTER("cudaMemsetAsync");
  return fill(stream, to, value, bytes);
}

// One, unless an empty CUDA_VISIBLE_DEVICES hides it.
cudaError_t cudaGetDeviceCount(int* count) {
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  *count = visible != nullptr && *visible == '\0' ? 0 : 1;
  return *count > 0 ? cudaSuccess : State::get().error(cudaErrorNoDevice);
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaDriverGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  std::strcpy(properties->name, "stand-in for a device");
  properties->major = 9;
  properties->totalGlobalMem = static_cast<size_t>(State::get().total_memory);
  properties->multiProcessorCount = 8;
  properties->warpSize = 32;
  properties->maxThreadsPerBlock = 1024;
  properties->maxThreadsPerMultiProcessor = 2048;
  properties->maxBlocksPerMultiProcessor = 32;
  properties->regsPerBlock = properties->regsPerMultiprocessor = 65536;
  properties->sharedMemPerBlock = 49152;
  properties->sharedMemPerMultiprocessor = properties->sharedMemPerBlockOptin = 232448;
  for (int axis = 0; axis < 3; ++axis) {
    properties->maxThreadsDim[axis] = axis < 2 ? 1024 : 64;
    properties->maxGridSize[axis] = axis < 1 ? 2147483647 : 65535;
  }
  properties->textureAlignment = 512;
  properties->l2CacheSize = 50 << 20;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor: *value = 9; break;
    case cudaDevAttrMultiProcessorCount: *value = 8; break;
    case cudaDevAttrMaxThreadsPerBlock: *value = 1024; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = 2048; break;
    case cudaDevAttrWarpSize: *value = 32; break;
    case cudaDevAttrMaxGridDimX: *value = 2147483647; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = 49152; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = 232448; break;
    default: *value = 0;
  }
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* id, int length, int) {
  std::strncpy(id, "0000:00:00.0", static_cast<size_t>(length));
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 0;
  return cudaSuccess;
}

const char* cudaGetErrorName(cudaError_t) { return "an error"; }
const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorUnknown: return "unknown error";
    case cudaErrorStreamCaptureUnsupported: return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureInvalidated: return "operation failed due to a previous error during capture";
    case cudaErrorStreamCaptureMerge: return "operation would result in a merge of separate capture sequences";
    case cudaErrorStreamCaptureUnmatched: return "capture was not ended in the same stream as it began";
    case cudaErrorStreamCaptureUnjoined: return "capturing stream has unjoined work";
    case cudaErrorStreamCaptureIsolation: return "dependency created on uncaptured work in another stream";
    case cudaErrorStreamCaptureImplicit: return "operation would make the legacy stream depend on a capturing stream";
    case cudaErrorCapturedEvent: return "operation not permitted on an event last recorded in a capturing stream";
    case cudaErrorStreamCaptureWrongThread: return "attempt to terminate a capture from another thread";
    default: return "an error of the stand-in";
  }
}

}  // extern "C"
