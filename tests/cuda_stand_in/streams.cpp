#include <algorithm>
#include <utility>
#include "tests/cuda_stand_in/state.h"

// Streams, events, captures and graphs.

using namespace duet::testing::cuda;

namespace {

Event& event_of(cudaEvent_t handle) { return *reinterpret_cast<Event*>(handle); }

bool goes_on(const State& state, const std::shared_ptr<Capture>& capture) {
  return capture != nullptr && std::find(state.captures.begin(), state.captures.end(), capture) != state.captures.end();
}

void merge(Clock& clock, const Clock& other) {
  for (const auto& [stream, time] : other) clock[stream] = std::max(clock[stream], time);
}

cudaError_t record(cudaEvent_t handle, cudaStream_t stream) {
  State& state = State::get();
  Event& event = event_of(handle);
  const Stream& on = state.stream(stream);
  if (const cudaError_t refused = state.use(on); refused != cudaSuccess) return refused;
  if (on.capture != nullptr && on.capture->invalid) return state.error(cudaErrorStreamCaptureInvalidated);
  event.recorded = true;
  event.capture = on.capture;
  event.clock = on.clock;
  return cudaSuccess;
}

// An event of a capture is an edge of its graph and nothing to wait for.
cudaError_t look_at(const char* name, cudaEvent_t handle) {
  DUET_ENTER_UNSAFE(name);
  if (event_of(handle).capture == nullptr) return cudaSuccess;
  return state.violation(cudaErrorCapturedEvent, std::string(name) + " of an event that a capture recorded");
}

cudaError_t wait_for(const char* name, cudaStream_t stream) {
  DUET_ENTER_UNSAFE(name);
  if (const cudaError_t refused = state.use(state.stream(stream)); refused != cudaSuccess) return refused;
  const auto& capture = state.stream(stream).capture;
  if (capture == nullptr) return cudaSuccess;
  state.invalidate(*capture);
  return state.violation(cudaErrorStreamCaptureUnsupported, std::string(name) + " of a capturing stream");
}

bool is_joined(const Capture& capture) {
  Clock& seen = capture.origin->clock;
  return std::all_of(capture.streams.begin(), capture.streams.end(),
                     [&](const Stream* stream) { return seen[stream] >= stream->clock.at(stream); });
}

}  // namespace

extern "C" {

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned int flags, int) {
  DUET_ENTER("cudaStreamCreateWithPriority");
  auto* made = new Stream;
  made->number = ++state.last_stream;
  made->blocking = (flags & cudaStreamNonBlocking) == 0;
  *stream = reinterpret_cast<cudaStream_t>(made);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamQuery(cudaStream_t stream) { return wait_for("cudaStreamQuery", stream); }
cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return wait_for("cudaStreamSynchronize", stream); }
cudaError_t cudaDeviceSynchronize() { return wait_for("cudaDeviceSynchronize", nullptr); }
cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void* data, unsigned int) {
  DUET_ENTER("cudaStreamAddCallback");
  callback(stream, cudaSuccess, data);
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t waited, unsigned int flags) {
  DUET_ENTER("cudaStreamWaitEvent");
  Event& event = event_of(waited);
  Stream& stream = state.stream(handle);
  if (!event.recorded) return cudaSuccess;
  if (event.capture == nullptr) {
    if (stream.capture == nullptr || (flags & cudaEventWaitExternal) != 0) return cudaSuccess;
    state.invalidate(*stream.capture);
    return state.violation(cudaErrorStreamCaptureIsolation, "a capture waits for an event from outside");
  }
  if (!goes_on(state, event.capture)) {
    if (stream.capture != nullptr) state.invalidate(*stream.capture);
    return state.violation(cudaErrorCapturedEvent, "a stream waits for an event of an earlier capture");
  }
  if (event.capture->invalid) return state.error(cudaErrorStreamCaptureInvalidated);
  if (stream.capture != nullptr && stream.capture != event.capture) {
    state.invalidate(*stream.capture);
    state.invalidate(*event.capture);
    return state.violation(cudaErrorStreamCaptureMerge, "two captures meet");
  }
  if (&stream == &state.legacy) {
    state.invalidate(*event.capture);
    return state.violation(cudaErrorStreamCaptureImplicit, "the legacy stream waits for a capture");
  }
  if (stream.capture == nullptr) {
    stream.capture = event.capture;
    stream.capture->streams.insert(&stream);
  }
  merge(stream.clock, event.clock);
  ++stream.clock[&stream];
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int) {
  DUET_ENTER("cudaEventCreate");
  *event = reinterpret_cast<cudaEvent_t>(new Event);
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  DUET_ENTER("cudaEventDestroy");
  delete &event_of(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  DUET_ENTER("cudaEventRecord");
  return record(event, stream);
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned int) {
  DUET_ENTER("cudaEventRecord");
  return record(event, stream);
}
cudaError_t cudaEventQuery(cudaEvent_t event) { return look_at("cudaEventQuery", event); }
cudaError_t cudaEventSynchronize(cudaEvent_t event) { return look_at("cudaEventSynchronize", event); }
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
  *milliseconds = 1;
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  DUET_ENTER("cudaStreamBeginCapture");
  Stream& stream = state.stream(handle);
  if (&stream == &state.legacy) {
    return state.violation(cudaErrorStreamCaptureUnsupported, "a capture of the legacy stream");
  }
  if (stream.capture != nullptr) return state.violation(cudaErrorIllegalState, "a capture within a capture");
  auto capture = std::make_shared<Capture>();
  capture->id = ++state.last_capture;
  capture->mode = mode;
  capture->thread = std::this_thread::get_id();
  capture->origin = &stream;
  capture->graph = new Graph;
  capture->streams.insert(&stream);
  stream.clock[&stream] = 1;
  stream.capture = capture;
  state.captures.push_back(std::move(capture));
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  *graph = nullptr;
  DUET_ENTER("cudaStreamEndCapture");
  const std::shared_ptr<Capture> capture = state.stream(handle).capture;
  if (capture == nullptr || capture->origin != &state.stream(handle)) {
    return state.violation(cudaErrorStreamCaptureUnmatched, "the end of a capture that was not begun here");
  }
  if (capture->mode != cudaStreamCaptureModeRelaxed && capture->thread != std::this_thread::get_id()) {
    return state.violation(cudaErrorStreamCaptureWrongThread, "the end of a capture on another thread");
  }
  const bool joined = is_joined(*capture);
  state.end(*capture);
  if (capture->invalid || !joined) {
    delete capture->graph;
    return capture->invalid ? state.error(cudaErrorStreamCaptureInvalidated)
                            : state.violation(cudaErrorStreamCaptureUnjoined, "a stream of the capture is not joined");
  }
  *graph = reinterpret_cast<cudaGraph_t>(capture->graph);
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  return cudaStreamGetCaptureInfo(handle, status, nullptr, nullptr, nullptr, nullptr, nullptr);
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t handle, cudaStreamCaptureStatus* status, unsigned long long* id,
                                     cudaGraph_t* graph, const cudaGraphNode_t** nodes, const cudaGraphEdgeData** edges,
                                     size_t* node_count) {
  State& state = State::get();
  const Lock lock(state.mutex);
  const auto& capture = state.stream(handle).capture;
  *status = capture == nullptr ? cudaStreamCaptureStatusNone
            : capture->invalid ? cudaStreamCaptureStatusInvalidated
                               : cudaStreamCaptureStatusActive;
  const bool active = *status == cudaStreamCaptureStatusActive;
  if (id != nullptr && active) *id = capture->id;
  if (graph != nullptr) *graph = active ? reinterpret_cast<cudaGraph_t>(capture->graph) : nullptr;
  if (nodes != nullptr) *nodes = nullptr;
  if (edges != nullptr) *edges = nullptr;
  if (node_count != nullptr) *node_count = 0;
  return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t*, size_t* count) {
  DUET_ENTER("cudaGraphGetNodes");
  *count = reinterpret_cast<Graph*>(graph)->size();
  return cudaSuccess;
}
cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t, cudaGraphNode_t*, cudaGraphEdgeData*, size_t* count) {
  *count = 0;
  return cudaSuccess;
}
cudaError_t cudaGraphDebugDotPrint(cudaGraph_t, const char*, unsigned int) { return cudaSuccess; }
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* program, cudaGraph_t graph, unsigned long long) {
  DUET_ENTER("cudaGraphInstantiate");
  *program = reinterpret_cast<cudaGraphExec_t>(new Graph(*reinterpret_cast<Graph*>(graph)));
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  DUET_ENTER("cudaGraphDestroy");
  delete reinterpret_cast<Graph*>(graph);
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t program) {
  DUET_ENTER("cudaGraphExecDestroy");
  delete reinterpret_cast<Graph*>(program);
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t program, cudaStream_t stream) {
  DUET_ENTER("cudaGraphLaunch");
  if (state.stream(stream).capture != nullptr) {
    return state.violation(cudaErrorStreamCaptureUnsupported, "a graph within a capture");
  }
  for (const Work& work : *reinterpret_cast<Graph*>(program)) {
    if (work) work();
  }
  return cudaSuccess;
}

}  // extern "C"
