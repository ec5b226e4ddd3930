#include "tests/cuda_stand_in/state.h"
#include <algorithm>
#include <utility>
#include "tests/cuda_stand_in/stand_in.h"

namespace duet::testing::cuda {

namespace {

thread_local cudaError_t last_error = cudaSuccess;
thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

}  // namespace

// Never destroyed: libraries call the runtime while the process ends.
State& State::get() {
  static State* state = new State;
  return *state;
}

cudaError_t State::error(cudaError_t code) {
  if (code != cudaSuccess) last_error = code;
  return code;
}

cudaError_t State::violation(cudaError_t code, const std::string& what) {
  violations.push_back(what);
  return error(code);
}

cudaError_t State::enter(const char* name) {
  ++counts[name];
  if (writes_log) log.emplace_back(name);
  ++failable;
  if (fail_in_capture && captures.empty()) return cudaSuccess;
  if (fail_in == 0 || (fail_name != "*" && fail_name != name) || --fail_in > 0) return cudaSuccess;
  failed = name;
  for (const auto& capture : captures) invalidate(*capture);
  return error(static_cast<cudaError_t>(fail_error));
}

cudaError_t State::enter_unsafe(const char* name) {
  if (const cudaError_t refused = enter(name); refused != cudaSuccess) return refused;
  if (thread_mode == cudaStreamCaptureModeRelaxed) return cudaSuccess;
  for (const auto& capture : captures) {
    const bool own = capture->thread == std::this_thread::get_id() && capture->mode != cudaStreamCaptureModeRelaxed;
    const bool all = capture->mode == cudaStreamCaptureModeGlobal && thread_mode == cudaStreamCaptureModeGlobal;
    if (!own && !all) continue;
    invalidate(*capture);
    return violation(cudaErrorStreamCaptureUnsupported, std::string(name) + " during a capture");
  }
  return cudaSuccess;
}

cudaError_t State::launch(cudaStream_t handle, Work work) {
  Stream& to = stream(handle);
  if (const cudaError_t refused = use(to); refused != cudaSuccess) return refused;
  if (to.capture == nullptr) {
    if (!captures.empty()) ++outside_launches;
    if (work) work();
    return cudaSuccess;
  }
  if (to.capture->invalid) return error(cudaErrorStreamCaptureInvalidated);
  ++to.clock[&to];
  to.capture->graph->push_back(std::move(work));
  return cudaSuccess;
}

void State::end(Capture& capture) {
  for (Stream* member : capture.streams) {
    member->capture = nullptr;
    member->clock.clear();
  }
  std::erase_if(captures, [&capture](const auto& item) { return item.get() == &capture; });
}

cudaError_t State::use(const Stream& stream) {
  if (&stream != &legacy) return cudaSuccess;
  for (const auto& capture : captures) {
    const bool stood_for = std::any_of(capture->streams.begin(), capture->streams.end(),
                                       [](const Stream* member) { return member->blocking; });
    if (!stood_for) continue;
    invalidate(*capture);
    return violation(cudaErrorStreamCaptureImplicit, "the legacy stream is used while a blocking stream captures");
  }
  return cudaSuccess;
}

Blocks::const_iterator State::block_of(const Blocks& blocks, const void* pointer) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  auto found = blocks.upper_bound(address);
  if (found == blocks.begin()) return blocks.end();
  --found;
  return address < found->first + found->second.bytes ? found : blocks.end();
}

void* State::seen(const void* pointer) const {
  const auto block = block_of(device_memory, pointer);
  if (block == device_memory.end()) return const_cast<void*>(pointer);
  return block->second.seen + (reinterpret_cast<uintptr_t>(pointer) - block->first);
}

int64_t count(const std::string& name) {
  State& state = State::get();
  const Lock lock(state.mutex);
  const auto found = state.counts.find(name);
  return found == state.counts.end() ? 0 : found->second;
}

Counts counts() {
  const Lock lock(State::get().mutex);
  return State::get().counts;
}

Counts calls_since(const Counts& before) {
  Counts since = counts();
  for (const auto& [name, was] : before) since[name] -= was;
  std::erase_if(since, [](const auto& item) { return item.second == 0; });
  return since;
}

std::vector<std::string> take_violations() {
  const Lock lock(State::get().mutex);
  return std::exchange(State::get().violations, {});
}

int64_t outside_launches() { return State::get().outside_launches; }

bool is_capturing() {
  const Lock lock(State::get().mutex);
  return !State::get().captures.empty();
}

void write_log(bool on) {
  const Lock lock(State::get().mutex);
  State::get().writes_log = on;
  State::get().log.clear();
}

std::vector<std::string> take_log() {
  const Lock lock(State::get().mutex);
  return std::exchange(State::get().log, {});
}

void fail(const std::string& name, int64_t nth, int error, Calls calls) {
  State& state = State::get();
  const Lock lock(state.mutex);
  state.fail_name = name;
  state.fail_in = nth;
  state.fail_error = error;
  state.fail_in_capture = calls == Calls::kWithinCaptures;
  state.failed.clear();
}

std::string failed_call() {
  const Lock lock(State::get().mutex);
  return State::get().failed;
}

int64_t calls_that_can_fail() {
  const Lock lock(State::get().mutex);
  return State::get().failable;
}

void set_memory(int64_t bytes) {
  const Lock lock(State::get().mutex);
  State::get().total_memory = bytes;
}

int64_t used_memory() {
  const Lock lock(State::get().mutex);
  return State::get().used_memory;
}

}  // namespace duet::testing::cuda

using namespace duet::testing::cuda;

extern "C" {

cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return last_error; }
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  *mode = std::exchange(thread_mode, *mode);
  return cudaSuccess;
}

}  // extern "C"
