#include "graph/record/op_tap.h"
#include <ATen/ops/empty.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>
#include "base/error.h"

namespace duet {

namespace {

constexpr c10::DispatchKey kTapKey = c10::DispatchKey::Fake;

std::mutex tap_mutex;  // held for a whole step
thread_local bool tapped_here = false;
std::recursive_mutex listener_mutex;  // autograd may run backward in threads of its own
OpListener* active_listener = nullptr;

}  // namespace

void OpTap::on_call(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const c10::DispatchKeySet below = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kTapKey);
  const c10::impl::ExcludeDispatchKeyGuard not_again(kTapKey);
  const std::lock_guard lock(listener_mutex);
  if (active_listener == nullptr) {
    op.redispatchBoxed(below, stack);
  } else {
    active_listener->on_call(op, below, stack);
  }
}

// At first use: a static initialiser would be dropped when duet is linked as a static library.
void OpTap::register_fallback() {
  static const bool registered = [] {
    static torch::Library library(torch::Library::IMPL, "_", kTapKey, __FILE__, __LINE__);
    library.fallback(torch::CppFunction::makeFromBoxedFunction<&OpTap::on_call>());
    return true;
  }();
  (void)registered;
}

OpTap::OpTap(OpListener& listener) {
  register_fallback();
  require<GraphError>(!tapped_here,
                      "[OpRecorder] a step is being recorded within a step that is being recorded; "
                      "do not run one trainer's step inside another's");
  lock_ = std::unique_lock(tap_mutex);
  tapped_here = true;
  const std::lock_guard lock(listener_mutex);
  active_listener = &listener;
  c10::impl::tls_set_dispatch_key_included(kTapKey, true);
}

OpTap::~OpTap() {
  const std::lock_guard lock(listener_mutex);
  c10::impl::tls_set_dispatch_key_included(kTapKey, false);
  active_listener = nullptr;
  tapped_here = false;
}

void OpTap::self_check() {
  struct Counter : OpListener {
    void on_call(const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack* stack) override {
      ++calls;
      op.redispatchBoxed(below, stack);
    }
    int calls = 0;
  };
  static const bool works = [] {
    Counter counter;
    const OpTap tap(counter);
    at::Tensor probe = at::empty({1});
    probe.fill_(1);
    return counter.calls == 2;
  }();
  require<GraphError>(works,
                      "[OpRecorder] this LibTorch does not route calls through DispatchKey::Fake; duet's graph "
                      "mode supports LibTorch 2.11, use that version or mode eager");
}

}  // namespace duet
