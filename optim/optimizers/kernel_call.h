#pragma once

#include <vector>
#include <ATen/core/Tensor.h>

namespace duet {

class DeviceHyperParameters;

// The tensors of one kernel call: parameters of one group that have the same number of steps behind them.
struct KernelCall {
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> gradients;  // of the loss itself; for a fused kernel still to be divided by grad_scale
  std::vector<std::vector<at::Tensor>> state;  // by slot, in the order of the optimizer's slots
  at::Tensor step;                             // float32, 0-dim: steps of these parameters, this one included
  const DeviceHyperParameters* numbers = nullptr;
  std::size_t group = 0;
  // Fused kernels only: the kernel divides gradients by grad_scale and does nothing if found_inf is 1. Float32, one
  // element, or undefined.
  at::Tensor grad_scale, found_inf;
  bool first = false;  // no parameter of the call was stepped before, as far as the host knows

  // A hyper-parameter on the device: 0-dim, float64 on the CPU, float32 elsewhere.
  const at::Tensor& number(const char* name) const;
  // Its value for kernels that take it from the host (CUDA's): a captured step freezes it.
  double host_number(const char* name) const;
};

}  // namespace duet
