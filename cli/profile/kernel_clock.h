#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>
#include <ATen/record_function.h>
#include "core/detail/flop_counter.h"

namespace duet {

// How fast this machine multiplies and copies with the present threads.
struct MachinePeak {
  PeakFlops flops;
  double bytes = 0;  // per second
};
// Measured in some tenths of a second: products, and copies within `working_set` bytes, which decide
// from which cache they come.
MachinePeak measure_peak(int64_t working_set);

// What the kernels of a step are and took.
struct KernelWork {
  double seconds = 0, least_seconds = 0;  // the least: of all steps with this work
  double flops = 0;                       // as flops_of() counts
  double bytes = 0;                       // that the other ops are given to read or to write

  // The least time that it takes at this pace.
  double floor_seconds(const MachinePeak& peak) const { return flops / peak.flops.per_second + bytes / peak.bytes; }
};

// Times the kernels of steps that this thread replays on the CPU, by the spans that a replay shows to profilers, while
// it lives. One at a time.
class KernelClock {
 public:
  KernelClock();
  ~KernelClock();
  KernelClock(const KernelClock&) = delete;
  KernelClock& operator=(const KernelClock&) = delete;

  void end_step();
  // Of all steps the one in the middle, by time. Zeros without a step.
  KernelWork median_step() const;

 private:
  struct Span;
  static std::unique_ptr<at::ObserverContext> begin_span(const at::RecordFunction& function);
  static void end_span(const at::RecordFunction& function, at::ObserverContext* span);

  int64_t depth_ = 0;  // of ops that call ops
  KernelWork step_;
  std::vector<KernelWork> steps_;
  at::CallbackHandle callback_;
};

}  // namespace duet
