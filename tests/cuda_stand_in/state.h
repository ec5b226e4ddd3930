#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>
#include <cuda_runtime_api.h>

namespace duet::testing::cuda {

using Work = std::function<void()>;  // null: a kernel, which does nothing
using Graph = std::vector<Work>;

struct Stream;
// How far the work of each stream has come that somebody waits for.
using Clock = std::map<const Stream*, int64_t>;

struct Capture {
  uint64_t id = 0;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::thread::id thread;
  Stream* origin = nullptr;
  bool invalid = false;
  Graph* graph = nullptr;
  std::set<Stream*> streams;
};

struct Stream {
  int number = 0;
  bool blocking = false;  // the legacy stream stands for it, too: made without cudaStreamNonBlocking
  std::shared_ptr<Capture> capture;
  Clock clock;
};

struct Event {
  std::shared_ptr<Capture> capture;  // that it was last recorded in
  bool recorded = false;
  Clock clock;
};

// The host may not touch memory of the device, as with a real one; the stand-in sees it at another address.
struct Block {
  std::size_t bytes = 0;
  char* seen = nullptr;
};
using Blocks = std::map<uintptr_t, Block>;

struct State {
  std::recursive_mutex mutex;
  std::map<std::string, int64_t> counts;
  std::vector<std::string> violations;
  std::vector<std::string> log;
  bool writes_log = false;
  int64_t outside_launches = 0;

  std::string fail_name;
  int64_t fail_in = 0;
  int fail_error = 0;
  bool fail_in_capture = false;
  std::string failed;
  int64_t failable = 0;

  std::vector<std::shared_ptr<Capture>> captures;  // going on
  uint64_t last_capture = 0;
  int last_stream = 0;
  Stream legacy;

  Blocks device_memory, host_memory;
  int64_t total_memory = int64_t{4} << 30;
  int64_t used_memory = 0;

  static State& get();

  // Counts a call; an error if it is the one to fail.
  cudaError_t enter(const char* name);
  // The same for a call that a capturing thread may not make, since it waits or could.
  cudaError_t enter_unsafe(const char* name);
  cudaError_t error(cudaError_t code);
  cudaError_t violation(cudaError_t code, const std::string& what);
  Stream& stream(cudaStream_t handle) {
    return handle == nullptr || handle == cudaStreamLegacy || handle == cudaStreamPerThread
               ? legacy
               : *reinterpret_cast<Stream*>(handle);
  }
  // Does the work, or writes it into the graph that the stream captures.
  cudaError_t launch(cudaStream_t handle, Work work = nullptr);
  void invalidate(Capture& capture) { capture.invalid = true; }
  void end(Capture& capture);
  // An error for work on the legacy stream while one that it stands for captures.
  cudaError_t use(const Stream& stream);
  bool is_device(const void* pointer) const { return block_of(device_memory, pointer) != device_memory.end(); }
  bool is_pinned(const void* pointer) const { return block_of(host_memory, pointer) != host_memory.end(); }
  // Where the stand-in reads and writes what lies at an address, of the device or of the host.
  void* seen(const void* pointer) const;

 private:
  static Blocks::const_iterator block_of(const Blocks& blocks, const void* pointer);
};

using Lock = std::lock_guard<std::recursive_mutex>;

// The first words of a call of the runtime.
#define DUET_ENTER(name)        \
  State& state = State::get();  \
  const Lock lock(state.mutex); \
  if (const cudaError_t refused = state.enter(name); refused != cudaSuccess) return refused
#define DUET_ENTER_UNSAFE(name) \
  State& state = State::get();  \
  const Lock lock(state.mutex); \
  if (const cudaError_t refused = state.enter_unsafe(name); refused != cudaSuccess) return refused

}  // namespace duet::testing::cuda
