#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <ATen/ScalarOps.h>
#include <c10/util/Exception.h>
#include "core/exported/ops.h"

// Python's arithmetic on ints, floats and bools, which is what sizes are in a graph.

namespace duet::exported {

namespace {

using c10::IValue;
using torch::jit::Stack;

const IValue& at(const Stack& arguments, std::size_t i) {
  TORCH_CHECK(i < arguments.size(), "an argument is missing");
  return arguments[i];
}

int64_t int_at(const Stack& arguments, std::size_t i) {
  const IValue& value = at(arguments, i);
  TORCH_CHECK(value.isInt() || value.isBool(), "expected an int, got ", value.tagKind());
  return value.isInt() ? value.toInt() : static_cast<int64_t>(value.toBool());
}

double float_at(const Stack& arguments, std::size_t i) {
  const IValue& value = at(arguments, i);
  return value.isDouble() ? value.toDouble() : static_cast<double>(int_at(arguments, i));
}

bool bool_at(const Stack& arguments, std::size_t i) { return float_at(arguments, i) != 0; }

// A function of ints where both are, of floats otherwise.
template <int64_t (*OfInts)(int64_t, int64_t), double (*OfFloats)(double, double)>
IValue binary(const Stack& a) {
  if (!at(a, 0).isDouble() && !at(a, 1).isDouble()) return OfInts(int_at(a, 0), int_at(a, 1));
  return OfFloats(float_at(a, 0), float_at(a, 1));
}

template <bool (*Compare)(double, double)>
IValue comparison(const Stack& a) {
  return Compare(float_at(a, 0), float_at(a, 1));
}

template <double (*Round)(double)>
IValue rounded(const Stack& a) {
  return static_cast<int64_t>(Round(float_at(a, 0)));
}

template <bool (*Overflows)(int64_t, int64_t, int64_t*)>
int64_t checked(int64_t a, int64_t b) {
  int64_t result = 0;
  TORCH_CHECK(!Overflows(a, b, &result), "a size is too large for 64 bits");
  return result;
}
bool add_overflows(int64_t a, int64_t b, int64_t* c) { return __builtin_add_overflow(a, b, c); }
bool sub_overflows(int64_t a, int64_t b, int64_t* c) { return __builtin_sub_overflow(a, b, c); }
bool mul_overflows(int64_t a, int64_t b, int64_t* c) { return __builtin_mul_overflow(a, b, c); }

int64_t floor_div(int64_t a, int64_t b) {
  TORCH_CHECK(b != 0, "integer division by zero");
  if (b == -1) return checked<sub_overflows>(0, a);
  return a / b - static_cast<int64_t>(a % b != 0 && (a < 0) != (b < 0));
}
int64_t modulo(int64_t a, int64_t b) { return a - floor_div(a, b) * b; }
int64_t power(int64_t base, int64_t exponent) {
  TORCH_CHECK(exponent >= 0, "an int with a negative exponent");
  int64_t result = 1;
  for (; exponent > 0; exponent /= 2) {  // by squaring
    const bool fits = exponent % 2 == 0 || !__builtin_mul_overflow(result, base, &result);
    const bool goes_on = exponent == 1 || !__builtin_mul_overflow(base, base, &base);
    TORCH_CHECK(fits && goes_on, "a power is too large for 64 bits");
  }
  return result;
}
int64_t shift_left(const Stack& a) { return checked<mul_overflows>(power(2, int_at(a, 1)), int_at(a, 0)); }

const at::Tensor& tensor_at(const Stack& arguments) {
  const IValue& value = at(arguments, 0);
  TORCH_CHECK(value.isTensor(), "expected a tensor, got ", value.tagKind());
  return value.toTensor();
}

const std::map<std::string, SymbolicOp>& known_ops() {
  using I = int64_t;
  using D = double;
  static const std::map<std::string, SymbolicOp> known = {
      {"_operator.add", binary<checked<add_overflows>, [](D a, D b) { return a + b; }>},
      {"_operator.sub", binary<checked<sub_overflows>, [](D a, D b) { return a - b; }>},
      {"_operator.mul", binary<checked<mul_overflows>, [](D a, D b) { return a * b; }>},
      {"_operator.floordiv", binary<floor_div, [](D a, D b) { return std::floor(a / b); }>},
      {"_operator.mod", binary<modulo, [](D a, D b) { return a - b * std::floor(a / b); }>},
      {"_operator.pow", binary<power, [](D a, D b) { return std::pow(a, b); }>},
      {"_operator.truediv", [](const Stack& a) -> IValue { return float_at(a, 0) / float_at(a, 1); }},
      {"_operator.neg",
       [](const Stack& a) {
         return at(a, 0).isDouble() ? IValue(-float_at(a, 0)) : IValue(checked<sub_overflows>(0, int_at(a, 0)));
       }},
      {"_operator.pos", [](const Stack& a) { return at(a, 0); }},
      {"_operator.eq", comparison<[](D a, D b) { return a == b; }>},
      {"_operator.ne", comparison<[](D a, D b) { return a != b; }>},
      {"_operator.lt", comparison<[](D a, D b) { return a < b; }>},
      {"_operator.le", comparison<[](D a, D b) { return a <= b; }>},
      {"_operator.gt", comparison<[](D a, D b) { return a > b; }>},
      {"_operator.ge", comparison<[](D a, D b) { return a >= b; }>},
      {"_operator.and_", [](const Stack& a) -> IValue { return bool_at(a, 0) && bool_at(a, 1); }},
      {"_operator.or_", [](const Stack& a) -> IValue { return bool_at(a, 0) || bool_at(a, 1); }},
      {"_operator.lshift", [](const Stack& a) -> IValue { return shift_left(a); }},
      {"_operator.rshift", [](const Stack& a) -> IValue { return floor_div(int_at(a, 0), power(2, int_at(a, 1))); }},
      {"math.trunc", rounded<[](D x) { return std::trunc(x); }>},
      {"math.floor", rounded<[](D x) { return std::floor(x); }>},
      {"math.ceil", rounded<[](D x) { return std::ceil(x); }>},
      {"torch.sym_int", rounded<[](D x) { return std::trunc(x); }>},
      {"torch.sym_float", [](const Stack& a) -> IValue { return float_at(a, 0); }},
      {"torch.sym_not", [](const Stack& a) -> IValue { return !bool_at(a, 0); }},
      {"torch.sym_ite", [](const Stack& a) { return bool_at(a, 0) ? at(a, 1) : at(a, 2); }},
      {"torch.sym_max", binary<[](I a, I b) { return std::max(a, b); }, [](D a, D b) { return std::max(a, b); }>},
      {"torch.sym_min", binary<[](I a, I b) { return std::min(a, b); }, [](D a, D b) { return std::min(a, b); }>},
      {"torch._sym_sqrt", [](const Stack& a) -> IValue { return std::sqrt(float_at(a, 0)); }},
      {"torch.ops.aten.sym_size.int", [](const Stack& a) -> IValue { return tensor_at(a).size(int_at(a, 1)); }},
      {"torch.ops.aten.sym_stride.int", [](const Stack& a) -> IValue { return tensor_at(a).stride(int_at(a, 1)); }},
      {"torch.ops.aten.sym_numel.default", [](const Stack& a) -> IValue { return tensor_at(a).numel(); }},
      {"torch.ops.aten.sym_storage_offset.default",
       [](const Stack& a) -> IValue { return tensor_at(a).storage_offset(); }}};
  return known;
}

}  // namespace

SymbolicOp symbolic_op(const std::string& target) {
  const auto& known = known_ops();
  const auto found = known.find(target);
  return found == known.end() ? nullptr : found->second;
}

at::Tensor wrapped_number(const IValue& number) {
  at::Tensor tensor = c10::scalar_to_tensor(number.toScalar());
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

}  // namespace duet::exported
