#include "graph/record/op_recorder.h"
#include <ATen/ops/empty.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>
#include "base/error.h"

namespace duet {

namespace {

constexpr c10::DispatchKey kRecordKey = c10::DispatchKey::Fake;

std::mutex capture_mutex;  // held for a whole recording
thread_local bool recording_here = false;
std::recursive_mutex recorder_mutex;  // autograd may run backward in threads of its own
OpRecorder* active_recorder = nullptr;
bool recording_paused = false;

}  // namespace

void OpRecorder::on_call(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const c10::DispatchKeySet below = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kRecordKey);
  const c10::impl::ExcludeDispatchKeyGuard not_again(kRecordKey);
  const std::lock_guard lock(recorder_mutex);
  OpRecorder* recorder = active_recorder;
  if (recorder == nullptr || recording_paused || !recorder->failure().empty()) {
    op.redispatchBoxed(below, stack);
    return;
  }
  ProgramWriter::Call call = recorder->before(op, *stack);
  op.redispatchBoxed(below, stack);
  recorder->after(std::move(call), *stack);
}

// At first use: a static initialiser would be dropped when duet is linked as a static library.
void OpRecorder::register_fallback() {
  static const bool registered = [] {
    static torch::Library library(torch::Library::IMPL, "_", kRecordKey, __FILE__, __LINE__);
    library.fallback(torch::CppFunction::makeFromBoxedFunction<&OpRecorder::on_call>());
    return true;
  }();
  (void)registered;
}

OpRecorder::OpRecorder(const NamedTensors& parameters, bool strict) : ProgramWriter(parameters, strict) {
  register_fallback();
  require<GraphError>(!recording_here,
                      "[OpRecorder] a step is being recorded within a step that is being recorded; "
                      "do not run one trainer's step inside another's");
  capture_lock_ = std::unique_lock(capture_mutex);  // waits for another trainer's capture
  recording_here = true;
  const std::lock_guard lock(recorder_mutex);
  active_recorder = this;
  recording_paused = false;
  c10::impl::tls_set_dispatch_key_included(kRecordKey, true);
}

OpRecorder::~OpRecorder() {
  const std::lock_guard lock(recorder_mutex);
  c10::impl::tls_set_dispatch_key_included(kRecordKey, false);
  active_recorder = nullptr;
  recording_here = false;
}

void OpRecorder::record(const std::function<void()>& step) {
  try {
    step();
  } catch (const GraphError&) {
    throw;
  } catch (const std::exception&) {
    throw_if_refused();
    throw;
  }
}

void OpRecorder::pause() { recording_paused = true; }

void OpRecorder::resume() { recording_paused = false; }

void OpRecorder::self_check() {
  static const bool works = [] {
    const OpRecorder recorder({});
    at::Tensor probe = at::empty({1});
    probe.fill_(1);
    return recorder.program().ops.size() == 2;
  }();
  require<GraphError>(works,
                      "[OpRecorder] this LibTorch does not route calls through DispatchKey::Fake; duet's graph "
                      "mode supports LibTorch 2.11, use that version or mode eager");
}

}  // namespace duet
