#include "core/exported/ops.h"
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <set>
#include <string_view>
#include <vector>
#include <ATen/ScalarOps.h>
#include <c10/util/Exception.h>
#include "base/detail/text.h"
#include "base/error.h"

namespace duet::exported {

namespace {

// Operators that do more than compute: they map files, talk to other processes, or belong to duet itself.
bool is_forbidden(const std::string& space, const std::string& name) {
  static const std::set<std::string> kSpaces = {"duet",
                                                "c10d",
                                                "_c10d_functional",
                                                "_c10d_functional_autograd",
                                                "profiler",
                                                "inductor",
                                                "symm_mem",
                                                "_dtensor",
                                                "fsdp",
                                                "static_runtime",
                                                "_test",
                                                "mkldnn",
                                                "prepacked",
                                                "xnnpack",
                                                "_quantized",
                                                "onednn",
                                                "mkldnn_prepacked",
                                                "rngprims",
                                                "streams",
                                                "debugprims"};
  static const std::set<std::string> kNames = {"from_file", "_nested_view_from_buffer", "_nested_view_from_buffer_copy",
                                               "set_data"};
  return kSpaces.contains(space) || kNames.contains(name) || name.starts_with("_sparse");
}

}  // namespace

c10::OperatorHandle find_op(const std::string& target, const std::string& place) {
  const std::string full = target.substr(std::string_view("torch.ops.").size());
  const std::size_t space_ends = full.find('.'), name_ends = full.rfind('.');
  const auto refusal = [&](const char* why) {
    return ConfigError("calls the op " + one_line(target) + (place.empty() ? "" : " at " + place) + ", which " + why);
  };
  if (space_ends != std::string::npos && name_ends > space_ends) {
    const std::string space = full.substr(0, space_ends), overload = full.substr(name_ends + 1);
    const std::string name = full.substr(space_ends + 1, name_ends - space_ends - 1);
    if (is_forbidden(space, name)) throw refusal("does more than compute; export a model without it");
    const auto op =
        c10::Dispatcher::singleton().findSchema({space + "::" + name, overload == "default" ? "" : overload});
    if (op) return *op;
  }
  throw refusal("this program does not have; load the library that defines it, or export without it");
}

// Python's arithmetic on ints, floats and bools, which is what sizes are in a graph.

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

template <class Compare>
IValue comparison(const Stack& a) {
  return Compare()(float_at(a, 0), float_at(a, 1));
}

// Of two bools a bool, as in Python.
template <class Operation>
IValue bitwise(const Stack& a) {
  const int64_t result = Operation()(int_at(a, 0), int_at(a, 1));
  return at(a, 0).isBool() && at(a, 1).isBool() ? IValue(result != 0) : IValue(result);
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
  int64_t result = 1;
  for (; exponent > 0; exponent /= 2) {  // by squaring
    const bool fits = exponent % 2 == 0 || !__builtin_mul_overflow(result, base, &result);
    const bool goes_on = exponent == 1 || !__builtin_mul_overflow(base, base, &base);
    TORCH_CHECK(fits && goes_on, "a power is too large for 64 bits");
  }
  return result;
}
// As in Python a float where the exponent is negative.
IValue power_of(const Stack& a) {
  const bool of_ints = !at(a, 0).isDouble() && !at(a, 1).isDouble() && int_at(a, 1) >= 0;
  return of_ints ? IValue(power(int_at(a, 0), int_at(a, 1))) : IValue(std::pow(float_at(a, 0), float_at(a, 1)));
}

// Named: g++ 12 takes no lambdas in the table below.
double add(double a, double b) { return a + b; }
double subtract(double a, double b) { return a - b; }
double multiply(double a, double b) { return a * b; }
double floor_of_quotient(double a, double b) { return std::floor(a / b); }
double remainder_of(double a, double b) { return a - b * std::floor(a / b); }
template <class Number>
Number larger(Number a, Number b) {
  return std::max(a, b);
}
template <class Number>
Number smaller(Number a, Number b) {
  return std::min(a, b);
}

int64_t shift(const Stack& a) {
  TORCH_CHECK(int_at(a, 1) >= 0, "negative shift count");
  return power(2, int_at(a, 1));
}
const at::Tensor& tensor_at(const Stack& arguments) {
  const IValue& value = at(arguments, 0);
  TORCH_CHECK(value.isTensor(), "expected a tensor, got ", value.tagKind());
  return value.toTensor();
}

struct NamedOp {
  std::vector<const char*> names;
  SymbolicOp op;
};

const std::vector<NamedOp>& known_ops() {
  using D = double;
  static const std::vector<NamedOp> known = {
      {{"_operator.add", "+", "Add"}, binary<checked<add_overflows>, add>},
      {{"_operator.sub", "-"}, binary<checked<sub_overflows>, subtract>},
      {{"_operator.mul", "*", "Mul"}, binary<checked<mul_overflows>, multiply>},
      {{"_operator.floordiv", "//", "FloorDiv"}, binary<floor_div, floor_of_quotient>},
      {{"_operator.mod", "%", "Mod", "PythonMod"}, binary<modulo, remainder_of>},
      {{"_operator.pow", "**", "Pow", "PowByNatural"}, power_of},
      {{"_operator.truediv", "/", "IntTrueDiv", "FloatTrueDiv"},
       [](const Stack& a) -> IValue { return float_at(a, 0) / float_at(a, 1); }},
      {{"_operator.neg"},
       [](const Stack& a) {
         return at(a, 0).isDouble() ? IValue(-float_at(a, 0)) : IValue(checked<sub_overflows>(0, int_at(a, 0)));
       }},
      {{"_operator.pos", "Identity", "Integer"}, [](const Stack& a) { return at(a, 0); }},
      {{"abs"},
       [](const Stack& a) {
         return at(a, 0).isDouble() ? IValue(std::abs(float_at(a, 0))) : IValue(std::abs(int_at(a, 0)));
       }},
      {{"_operator.eq", "=="}, comparison<std::equal_to<D>>},
      {{"_operator.ne", "!="}, comparison<std::not_equal_to<D>>},
      {{"_operator.lt", "<"}, comparison<std::less<D>>},
      {{"_operator.le", "<="}, comparison<std::less_equal<D>>},
      {{"_operator.gt", ">"}, comparison<std::greater<D>>},
      {{"_operator.ge", ">="}, comparison<std::greater_equal<D>>},
      {{"_operator.and_"}, bitwise<std::bit_and<>>},
      {{"_operator.or_"}, bitwise<std::bit_or<>>},
      {{"and"}, [](const Stack& a) -> IValue { return bool_at(a, 0) && bool_at(a, 1); }},
      {{"or"}, [](const Stack& a) -> IValue { return bool_at(a, 0) || bool_at(a, 1); }},
      {{"_operator.lshift"}, [](const Stack& a) -> IValue { return checked<mul_overflows>(shift(a), int_at(a, 0)); }},
      {{"_operator.rshift"}, [](const Stack& a) -> IValue { return floor_div(int_at(a, 0), shift(a)); }},
      {{"math.trunc", "torch.sym_int", "TruncToInt", "int"}, rounded<std::trunc>},
      {{"math.floor", "FloorToInt"}, rounded<std::floor>},
      {{"math.ceil", "CeilToInt"}, rounded<std::ceil>},
      {{"torch.sym_float", "float", "ToFloat"}, [](const Stack& a) -> IValue { return float_at(a, 0); }},
      {{"torch.sym_not", "not"}, [](const Stack& a) -> IValue { return !bool_at(a, 0); }},
      {{"torch.sym_ite"}, [](const Stack& a) { return bool_at(a, 0) ? at(a, 1) : at(a, 2); }},
      {{"torch.sym_max", "max", "Max"}, binary<larger<int64_t>, larger<D>>},
      {{"torch.sym_min", "min", "Min"}, binary<smaller<int64_t>, smaller<D>>},
      {{"torch._sym_sqrt", "math.sqrt"}, [](const Stack& a) -> IValue { return std::sqrt(float_at(a, 0)); }},
      {{"torch.ops.aten.sym_size.int"}, [](const Stack& a) -> IValue { return tensor_at(a).size(int_at(a, 1)); }},
      {{"torch.ops.aten.sym_stride.int"}, [](const Stack& a) -> IValue { return tensor_at(a).stride(int_at(a, 1)); }},
      {{"torch.ops.aten.sym_numel.default"}, [](const Stack& a) -> IValue { return tensor_at(a).numel(); }},
      {{"torch.ops.aten.sym_storage_offset.default"},
       [](const Stack& a) -> IValue { return tensor_at(a).storage_offset(); }}};
  return known;
}

}  // namespace

SymbolicOp symbolic_op(const std::string& name) {
  for (const NamedOp& known : known_ops()) {
    if (std::ranges::find(known.names, name) != known.names.end()) return known.op;
  }
  return nullptr;
}

at::Tensor wrapped_number(const IValue& number) {
  at::Tensor tensor = c10::scalar_to_tensor(number.toScalar());
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

}  // namespace duet::exported
