#include "cli/profile/op_clock.h"
#include <algorithm>
#include <string_view>
#include <c10/core/Allocator.h>
#include "base/detail/name_pattern.h"
#include "core/task.h"

namespace duet {

namespace {

OpClock* active_clock = nullptr;

bool is_hook(std::string_view name) { return name.starts_with("hook:"); }

bool is_of_backward(const at::RecordFunction& function) {
  return function.scope() == at::RecordScope::BACKWARD_FUNCTION ||
         std::string_view(function.name()).starts_with("autograd::engine::evaluate_function");
}

double seconds_between(std::chrono::steady_clock::time_point from, std::chrono::steady_clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace

struct OpClock::Span : at::ObserverContext {
  std::string op, module;
  Time began{};
  double inner_seconds = 0;
  Span* outer = nullptr;
  static thread_local Span* innermost;
};
thread_local OpClock::Span* OpClock::Span::innermost = nullptr;

// What LibTorch's allocators tell.
class OpClock::Memory : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void* /*memory*/, int64_t bytes, std::size_t /*allocated*/, std::size_t /*reserved*/,
                         c10::Device /*device*/) override {
    held += bytes;
  }
  bool memoryProfilingEnabled() const override { return true; }

  int64_t held = 0, most_kept = 0;  // since the step began
};

OpClock::OpClock(const Task& task) : memory_(std::make_shared<Memory>()) {
  for (const auto& [name, tensor] : task.named_parameters()) {
    module_of_parameter_[tensor.unsafeGetTensorImpl()] = dotted_parent(name);
  }
  memory_guard_ = std::make_unique<c10::DebugInfoGuard>(c10::DebugInfoKind::PROFILER_STATE, memory_);
  active_clock = this;
  callback_ = at::addGlobalCallback(
      at::RecordFunctionCallback(&begin_span, &end_span)
          .needsInputs(true)
          .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION, at::RecordScope::USER_SCOPE}));
}

OpClock::~OpClock() {
  at::removeCallback(callback_);
  active_clock = nullptr;
}

void OpClock::begin_step(int64_t micro_batches) {
  const std::lock_guard lock(mutex_);
  const Time now = Clock::now();
  step_ = {.micro_batches = micro_batches, .phase = kForward, .phase_began = now, .last_end = now};
  memory_->held = 0;
}

void OpClock::end_step() {
  const std::lock_guard lock(mutex_);
  close_phase(Clock::now());
  step_.phase = kNone;
}

std::vector<OpTime> OpClock::ops() const {
  std::vector<OpTime> ops;
  for (const auto& item : ops_) ops.push_back(item.second);
  std::stable_sort(ops.begin(), ops.end(), [](const OpTime& a, const OpTime& b) { return a.seconds > b.seconds; });
  return ops;
}

std::vector<std::pair<const char*, double>> OpClock::phases() const {
  std::vector<std::pair<const char*, double>> phases;
  for (std::size_t i = 0; i < kPhases.size(); ++i) phases.emplace_back(kPhases[i], seconds_[i]);
  return phases;
}

int64_t OpClock::activation_bytes() const { return memory_->most_kept; }

std::unique_ptr<at::ObserverContext> OpClock::begin_span(const at::RecordFunction& function) {
  if (active_clock == nullptr) return nullptr;
  auto span = std::make_unique<Span>();
  active_clock->enter(function, *span);
  return span;
}

void OpClock::end_span(const at::RecordFunction& /*function*/, at::ObserverContext* context) {
  if (context == nullptr || active_clock == nullptr) return;
  active_clock->leave(*static_cast<Span*>(context), Clock::now());
}

void OpClock::enter(const at::RecordFunction& function, Span& span) {
  const std::lock_guard lock(mutex_);
  const Time now = Clock::now();
  const bool is_backward = is_of_backward(function);
  span.op = function.name();
  span.outer = std::exchange(Span::innermost, &span);
  if (span.outer == nullptr && !is_hook(span.op)) begin_outermost(is_backward, now);
  span.module = step_.phase == kOptimizer ? "" : module_of(function, is_backward);
  span.began = Clock::now();
}

void OpClock::leave(const Span& span, Time now) {
  const std::lock_guard lock(mutex_);
  Span::innermost = span.outer;
  const double seconds = seconds_between(span.began, now);
  if (span.outer != nullptr) span.outer->inner_seconds += seconds;
  if (span.outer == nullptr) step_.last_end = now;
  if (is_hook(span.op)) {
    if (span.outer == nullptr) seconds_[kHooks] += seconds, step_.hooks_in_phase += seconds;
    return;
  }
  if (step_.phase == kNone) return;
  OpTime& time = ops_[{span.op, span.module}];
  time.op = span.op;
  time.module = span.module;
  ++time.calls;
  time.seconds += seconds - span.inner_seconds;
}

// The first node of a backward ends the forward; the first op after one begins the next micro-batch, or the optimizer.
void OpClock::begin_outermost(bool is_backward, Time now) {
  if (step_.phase == kForward && is_backward) {
    memory_->most_kept = std::max(memory_->most_kept, memory_->held);
    close_phase(now);
    step_.phase = kBackward;
  } else if (step_.phase == kBackward && !is_backward) {
    close_phase(step_.last_end);
    step_.phase = ++step_.backwards == step_.micro_batches ? kOptimizer : kForward;
  }
}

void OpClock::close_phase(Time until) {
  if (step_.phase != kNone) seconds_[step_.phase] += seconds_between(step_.phase_began, until) - step_.hooks_in_phase;
  step_.hooks_in_phase = 0;
  step_.phase_began = until;
}

std::string OpClock::module_of(const at::RecordFunction& function, bool is_backward) {
  if (is_backward) {
    const auto found = step_.module_of_sequence.find(function.seqNr());
    if (found != step_.module_of_sequence.end()) step_.module = found->second;
    return step_.module;
  }
  if (step_.phase != kForward) return step_.module;
  for (const c10::IValue& input : function.inputs()) {
    if (!input.isTensor()) continue;
    const auto found = module_of_parameter_.find(input.toTensor().unsafeGetTensorImpl());
    if (found != module_of_parameter_.end()) step_.module = found->second;
  }
  if (function.seqNr() >= 0) step_.module_of_sequence[function.seqNr()] = step_.module;
  return step_.module;
}

}  // namespace duet
