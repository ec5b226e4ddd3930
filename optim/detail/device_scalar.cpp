#include "optim/detail/device_scalar.h"
#include <ATen/ops/full.h>

namespace duet {

at::Tensor make_device_scalar(double value, at::ScalarType dtype, at::Device device) {
  return at::full({}, value, at::TensorOptions().dtype(dtype).device(device));
}

void write_device_scalar(const at::Tensor& scalar, double value) {
  if (!scalar.is_cpu()) {
    scalar.fill_(value);
  } else if (scalar.scalar_type() == at::kDouble) {
    *scalar.mutable_data_ptr<double>() = value;
  } else if (scalar.scalar_type() == at::kLong) {
    *scalar.mutable_data_ptr<int64_t>() = static_cast<int64_t>(value);
  } else {
    *scalar.mutable_data_ptr<float>() = static_cast<float>(value);
  }
}

double read_device_scalar(const at::Tensor& scalar) {
  if (!scalar.is_cpu()) return scalar.item<double>();
  if (scalar.scalar_type() == at::kDouble) return *scalar.const_data_ptr<double>();
  if (scalar.scalar_type() == at::kLong) return static_cast<double>(*scalar.const_data_ptr<int64_t>());
  return *scalar.const_data_ptr<float>();
}

at::ScalarType hyper_parameter_dtype(at::Device device) { return device.is_cpu() ? at::kDouble : at::kFloat; }

}  // namespace duet
