#include "base/detail/op_tap.h"
#include <ATen/ops/empty.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/ScopeExit.h>
#include <torch/library.h>
#include "base/error.h"

namespace duet {

namespace {

// LibTorch hands it on, with the thread's dispatch keys, to threads that work for this one; nothing of its own uses it.
const c10::DebugInfoKind kTapInfo = c10::DebugInfoKind::TEST_INFO_2;

bool is_span(const c10::OperatorHandle& op) { return op.schema().name().rfind("profiler::", 0) == 0; }

}  // namespace

// Threads that work for a step may come at the same time, or late.
struct OpTap::Line : c10::DebugInfoBase {
  std::recursive_mutex mutex;
  OpListener* listener = nullptr;
  AutogradWatch autograd{};
};

void OpTap::on_call(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const c10::DispatchKeySet below = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey);
  const c10::impl::ExcludeDispatchKeyGuard not_again(kKey);
  auto* line = static_cast<Line*>(c10::ThreadLocalDebugInfo::get(kTapInfo));
  // A profiler's spans (torch.optim's step() has one) are not part of what is computed, and their handles are others
  // each time.
  if (line == nullptr || is_span(op)) return op.redispatchBoxed(below, stack);
  const std::lock_guard lock(line->mutex);
  line->autograd.see(*stack, op.schema().arguments().size());
  if (line->listener == nullptr) {
    op.redispatchBoxed(below, stack);
  } else {
    line->listener->on_call(op, below, stack);
  }
  line->autograd.see(*stack, op.schema().returns().size());
}

// At first use: a static initialiser would be dropped when duet is linked as a static library.
void OpTap::register_fallback() {
  static const bool registered = [] {
    static torch::Library library(torch::Library::IMPL, "_", kKey, __FILE__, __LINE__);
    library.fallback(torch::CppFunction::makeFromBoxedFunction<&OpTap::on_call>());
    return true;
  }();
  (void)registered;
}

OpTap::OpTap(OpListener& listener) : line_(std::make_shared<Line>()) {
  register_fallback();
  require<GraphError>(!is_active(),
                      "[OpTap] a step is being recorded or checked within a step that is being recorded or checked; "
                      "do not run one trainer's step inside another's");
  line_->listener = &listener;
  info_.emplace(kTapInfo, line_);
  c10::impl::tls_set_dispatch_key_included(kKey, true);
}

void OpTap::backward(const at::Tensor& loss, const NamedTensors& parameters, const std::function<void()>& run) {
  auto* line = static_cast<Line*>(c10::ThreadLocalDebugInfo::get(kTapInfo));
  if (line == nullptr) return run();
  const auto tell = [line](const auto& of_pass) {
    const c10::impl::ExcludeDispatchKeyGuard unheard(kKey);
    const std::lock_guard lock(line->mutex);
    return line->listener == nullptr || of_pass(*line->listener);
  };
  if (!tell([&](OpListener& listener) { return listener.before_backward(loss, parameters, line->autograd); })) return;
  line->autograd.pause(true);
  const auto goes_on = c10::make_scope_exit([line] { line->autograd.pause(false); });
  run();
  tell([&](OpListener& listener) { return listener.after_backward(parameters), true; });
}

bool OpTap::is_active() { return c10::ThreadLocalDebugInfo::get(kTapInfo) != nullptr; }

OpTap::~OpTap() {
  c10::impl::tls_set_dispatch_key_included(kKey, false);
  const std::lock_guard lock(line_->mutex);
  line_->listener = nullptr;
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
  require<GraphError>(
      works,
      "[OpTap] this LibTorch does not route calls through DispatchKey::Fake; duet's graph mode supports "
      "LibTorch 2.11 to 2.15, use that version or mode eager");
}

}  // namespace duet
