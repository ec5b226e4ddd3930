#include "cli/profile/kernel_clock.h"
#include <algorithm>
#include <utility>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>

namespace duet {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

double bytes_of(c10::ArrayRef<const c10::IValue> inputs) {
  double bytes = 0;
  const auto add = [&bytes](const at::Tensor& tensor) {
    if (tensor.defined() && tensor.has_storage()) {
      bytes += static_cast<double>(std::min(tensor.nbytes(), tensor.storage().nbytes()));
    }
  };
  for (const c10::IValue& input : inputs) {
    if (input.isTensor()) add(input.toTensor());
    if (!input.isTensorList()) continue;
    for (const at::Tensor& tensor : input.toTensorVector()) add(tensor);
  }
  return bytes;
}

KernelClock* timing_clock = nullptr;

}  // namespace

MachinePeak measure_peak(int64_t working_set) {
  const int64_t half = std::clamp<int64_t>(working_set, 1 << 16, 1 << 28) / 8;  // floats
  const at::Tensor from = at::ones({half}), to = at::empty({half});
  const double copy_seconds = least_seconds([&] { to.copy_(from); });
  return {measure_peak_flops(at::kCPU, at::kFloat), 8.0 * static_cast<double>(half) / copy_seconds};
}

struct KernelClock::Span : at::ObserverContext {
  Clock::time_point began;
};

KernelClock::KernelClock() {
  timing_clock = this;
  callback_ = at::addThreadLocalCallback(at::RecordFunctionCallback(&begin_span, &end_span)
                                             .needsInputs(true)
                                             .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
}

KernelClock::~KernelClock() {
  at::removeCallback(callback_);
  timing_clock = nullptr;
}

std::unique_ptr<at::ObserverContext> KernelClock::begin_span(const at::RecordFunction& function) {
  auto span = std::make_unique<Span>();
  if (timing_clock->depth_++ == 0) {
    const double flops = flops_of(function);
    timing_clock->step_.flops += flops;
    if (flops == 0) timing_clock->step_.bytes += bytes_of(function.inputs());
  }
  span->began = Clock::now();
  return span;
}

void KernelClock::end_span(const at::RecordFunction& /*function*/, at::ObserverContext* context) {
  const double seconds = seconds_since(static_cast<Span*>(context)->began);
  if (--timing_clock->depth_ == 0) timing_clock->step_.seconds += seconds;
}

void KernelClock::end_step() { steps_.push_back(std::exchange(step_, {})); }

KernelWork KernelClock::median_step() const {
  if (steps_.empty()) return {};
  std::vector<KernelWork> sorted = steps_;
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
  std::nth_element(sorted.begin(), middle, sorted.end(),
                   [](const KernelWork& a, const KernelWork& b) { return a.seconds < b.seconds; });
  KernelWork work = *middle;
  work.least_seconds = work.seconds;
  for (const KernelWork& step : steps_) {
    if (step.flops == work.flops && step.bytes == work.bytes)
      work.least_seconds = std::min(work.least_seconds, step.seconds);
  }
  return work;
}

}  // namespace duet
