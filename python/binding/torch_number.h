#pragma once

#include <algorithm>
#include <cmath>
#include <optional>
#include <ATen/core/Tensor.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/scalar_tensor.h>
#include "python/binding/py.h"

namespace duet::python {

// A hyper-parameter of torch.optim and what Python makes of it: arithmetic with a tensor or a NumPy number rounds to
// its dtype, as that with Python's own does not.
class TorchNumber {
 public:
  // In order of promotion. A NumPy number of float64 is one of Python's.
  enum class Type { kPython, kNumpyFloat, kTensorFloat, kTensorDouble };
  static constexpr int64_t kTypes = 4;

  TorchNumber(double value, Type type = Type::kPython) : value_(value), type_(type) {}

  double value() const { return value_; }
  Type type() const { return type_; }
  bool is_tensor() const { return type_ >= Type::kTensorFloat; }
  bool is_float() const { return type_ == Type::kNumpyFloat || type_ == Type::kTensorFloat; }
  at::Tensor tensor() const { return at::scalar_tensor(value_, is_float() ? at::kFloat : at::kDouble); }

  // tensor.to(dtype)
  TorchNumber to(at::ScalarType dtype) const {
    if (!is_tensor()) return *this;
    const bool wide = dtype == at::kDouble;
    return {wide ? value_ : static_cast<float>(value_), wide ? Type::kTensorDouble : Type::kTensorFloat};
  }
  TorchNumber pow(double exponent) const {
    if (is_tensor()) return {at::pow(tensor(), exponent).item<double>(), type_};
    return apply(*this, exponent, [](auto x, auto y) { return std::pow(x, y); });
  }
  friend TorchNumber operator+(const TorchNumber& a, const TorchNumber& b) {
    return apply(a, b, [](auto x, auto y) { return x + y; });
  }
  friend TorchNumber operator-(const TorchNumber& a, const TorchNumber& b) {
    return apply(a, b, [](auto x, auto y) { return x - y; });
  }
  friend TorchNumber operator*(const TorchNumber& a, const TorchNumber& b) {
    return apply(a, b, [](auto x, auto y) { return x * y; });
  }
  // Of a number by a tensor: Tensor.__rtruediv__ multiplies by the reciprocal.
  friend TorchNumber operator/(const TorchNumber& a, const TorchNumber& b) {
    if (b.is_tensor() && !a.is_tensor()) return a * (TorchNumber(1, b.type_) / b);
    return apply(a, b, [](auto x, auto y) { return x / y; });
  }

 private:
  template <class Operation>
  static TorchNumber apply(const TorchNumber& a, const TorchNumber& b, const Operation& operation) {
    const TorchNumber kind(0, std::max(a.type_, b.type_));
    if (!kind.is_float()) return {operation(a.value_, b.value_), kind.type_};
    return {operation(static_cast<float>(a.value_), static_cast<float>(b.value_)), kind.type_};
  }

  double value_;
  Type type_;
};

// What the object is to torch.optim: a number of Python or NumPy, or a tensor of one on the CPU. Empty for anything
// else.
std::optional<TorchNumber> to_torch_number(const py::handle& object);

}  // namespace duet::python
