#pragma once

#include <ATen/core/Tensor.h>

namespace duet {

// A host number that the device reads: a 0-dim tensor with a fixed address, so that a captured step sees every new
// value.
at::Tensor make_device_scalar(double value, at::ScalarType dtype, at::Device device);

// Writes outside any captured region; on the CPU a plain store, not a dispatched op. Float, double or int64.
void write_device_scalar(const at::Tensor& scalar, double value);
// Waits for the device; on the CPU a plain load. Float, double or int64.
double read_device_scalar(const at::Tensor& scalar);

// CUDA's fused kernels read a float32 learning rate; on the CPU double keeps the value the user gave.
at::ScalarType hyper_parameter_dtype(at::Device device);

}  // namespace duet
