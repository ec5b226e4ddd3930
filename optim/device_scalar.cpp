#include <duet/optim/device_scalar.h>

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
  } else {
    *scalar.mutable_data_ptr<float>() = static_cast<float>(value);
  }
}

at::ScalarType learning_rate_dtype(at::Device device) { return device.is_cpu() ? at::kDouble : at::kFloat; }

}  // namespace duet
