#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <ATen/record_function.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

namespace duet {

// Floating point operations of one call: of products, convolutions and attention, a multiply-add being two; 0 for
// anything else. What is computed is counted, as in torch.utils.flop_counter: in the backward of fused attention the
// scores again; of a convolution's backward the gradients that are asked for; of causal attention the pairs below the
// diagonal alone, half of what that counter says. The recurrent layers of cuDNN and oneDNN are not counted.
double flops_of(const at::RecordFunction& call);

// Counts the operations of this thread's ops, and of autograd's threads that work for it, while it lives: of a step
// that runs op by op, or is replayed on the CPU. A device's graph shows no ops.
class FlopCounter {
 public:
  FlopCounter();
  ~FlopCounter();
  FlopCounter(const FlopCounter&) = delete;
  FlopCounter& operator=(const FlopCounter&) = delete;

  // 0: there were none, or another counter lives.
  double flops() const;
  // That most of them were made in.
  at::ScalarType dtype() const;

 private:
  struct Span;
  static std::unique_ptr<at::ObserverContext> begin_span(const at::RecordFunction& call);
  static void end_span(const at::RecordFunction& call, at::ObserverContext* span);

  std::map<at::ScalarType, double> by_type_;
  int64_t depth_ = 0;  // of calls within one that was counted
  at::CallbackHandle callback_ = 0;
  bool counts_;
};

// How fast this machine multiplies with the present threads and settings.
struct PeakFlops {
  double per_second = 0;
  std::string from;  // "products of 384 x 384 Float numbers on cpu, as measured"
};
// Measured in a tenth of a second.
PeakFlops measure_peak_flops(at::Device device, at::ScalarType dtype);

// Of many runs of `run` within a tenth of a second the shortest: nothing makes one shorter than it is.
double least_seconds(const std::function<void()>& run);

}  // namespace duet
