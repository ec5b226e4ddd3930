#pragma once

#include <cstdint>
#include <memory>
#include <vector>
#include <ATen/record_function.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

namespace duet {

// Floating point operations of one call, as torch.utils.flop_counter has them: of products, convolutions and attention,
// a multiply-add being two; 0 for anything else, the recurrent layers of cuDNN and oneDNN among them.
double flops_of(const at::RecordFunction& call);

// Operations per second of large products with the present threads and settings, measured in a tenth of a second.
double measure_peak_flops(at::Device device, at::ScalarType dtype);
// Bytes per second that the CPU reads and writes in copies within `working_set` bytes.
double measure_peak_bytes(int64_t working_set);

// What the kernels of a step are and took.
struct KernelWork {
  double seconds = 0, least_seconds = 0;  // the least: of all steps with this work
  double flops = 0;                       // as flops_of() counts
  double bytes = 0;                       // that the other ops are given to read or to write
  at::ScalarType dtype = at::kFloat;      // of the last product
};

// Counts the kernels of steps of this thread (and of autograd's) by the spans that ops show to profilers, while it
// lives; times those of a replay on the CPU. A device's graph shows none. Does nothing while another one lives.
class KernelClock {
 public:
  KernelClock();
  ~KernelClock();
  KernelClock(const KernelClock&) = delete;
  KernelClock& operator=(const KernelClock&) = delete;

  KernelWork end_step();
  // Of all steps the one in the middle, by time. Zeros without a step.
  KernelWork median_step() const;

 private:
  struct Span;
  static std::unique_ptr<at::ObserverContext> begin_span(const at::RecordFunction& function);
  static void end_span(const at::RecordFunction& function, at::ObserverContext* span);

  int64_t depth_ = 0, products_ = 0;  // of ops that call ops, of these that are counted
  KernelWork step_;
  std::vector<KernelWork> steps_;
  at::CallbackHandle callback_ = 0;
};

}  // namespace duet
