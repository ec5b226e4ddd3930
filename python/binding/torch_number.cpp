#include "python/binding/torch_number.h"
#include <string>

namespace duet::python {

namespace {

using Type = TorchNumber::Type;

std::optional<TorchNumber> of_tensor(const at::Tensor& tensor) {
  const bool fits =
      tensor.is_cpu() && tensor.layout() == at::kStrided && tensor.numel() == 1 && !tensor.requires_grad();
  if (fits && tensor.scalar_type() == at::kFloat) return TorchNumber(tensor.item<double>(), Type::kTensorFloat);
  if (fits && tensor.scalar_type() == at::kDouble) return TorchNumber(tensor.item<double>(), Type::kTensorDouble);
  return std::nullopt;
}

std::optional<TorchNumber> of_numpy(const py::handle& number) {
  const auto dtype = py::cast<std::string>(py::str(number.attr("dtype")));
  if (py::cast<int>(number.attr("ndim")) != 0) return std::nullopt;
  const bool is_float = dtype == "float32";
  const bool is_python = dtype == "float64" || dtype.starts_with("int") || dtype.starts_with("uint");
  if (!is_float && !is_python) return std::nullopt;
  return TorchNumber(py::cast<double>(py::float_(py::reinterpret_borrow<py::object>(number))),
                     is_float ? Type::kNumpyFloat : Type::kPython);
}

}  // namespace

std::optional<TorchNumber> to_torch_number(const py::handle& object) {
  if (PyFloat_Check(object.ptr()) || PyLong_Check(object.ptr())) return TorchNumber(py::cast<double>(object));
  if (THPVariable_Check(object.ptr())) return of_tensor(THPVariable_Unpack(object.ptr()));
  if (py::hasattr(object, "dtype") && py::hasattr(object, "ndim")) return of_numpy(object);
  return std::nullopt;
}

}  // namespace duet::python
