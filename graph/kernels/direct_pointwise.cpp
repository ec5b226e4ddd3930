#include <algorithm>
#include <cstring>
#include "graph/kernels/call_kernels.h"
#include "graph/kernels/cpu_kernels.h"
#include "graph/kernels/kernel_tensors.h"
#include "graph/kernels/strided_loops.h"

// Arithmetic on each element by itself without what ATen does before it: checks, broadcasting, allocation.

namespace duet {

namespace {

// Where the arguments of an op stand; -1: it has none such.
struct PointwiseOp {
  const char* name;
  const char* overload;
  PointwiseKernel PointwiseKernels::* kernel;
  struct Details {
    int out = -1;  // the op makes its result
    int a = 0, b = -1;
    int one = -1;                // must be 1
    int number = -1;             // besides b
    double value = 1;            // of the number that stands nowhere
    double power = 0;            // that argument 1 must be, if not 0
    bool whole_vectors = false;  // ATen computes what is left over otherwise
  } with;
};

using Kernels = PointwiseKernels;

constexpr PointwiseOp kPointwiseOps[] = {
    {"aten::add", "out", &Kernels::add, {.out = 3, .b = 1, .one = 2}},
    {"aten::add_", "Tensor", &Kernels::add, {.out = 0, .b = 1, .one = 2}},
    {"aten::add_", "Scalar", &Kernels::add, {.out = 0, .b = 1, .one = 2}},
    {"aten::add", "Scalar", &Kernels::add, {.b = 1, .one = 2}},
    {"aten::sub", "out", &Kernels::add, {.out = 3, .b = 1, .one = 2, .value = -1}},
    {"aten::sub_", "Tensor", &Kernels::add, {.out = 0, .b = 1, .one = 2, .value = -1}},
    {"aten::mul", "out", &Kernels::multiply, {.out = 2, .b = 1}},
    {"aten::mul", "Scalar", &Kernels::multiply, {.b = 1}},
    {"aten::mul_", "Tensor", &Kernels::multiply, {.out = 0, .b = 1}},
    {"aten::mul_", "Scalar", &Kernels::multiply, {.out = 0, .b = 1}},
    {"aten::div", "out", &Kernels::divide, {.out = 2, .b = 1}},
    {"aten::div", "Scalar", &Kernels::divide, {.b = 1}},
    {"aten::div_", "Tensor", &Kernels::divide, {.out = 0, .b = 1}},
    {"aten::div_", "Scalar", &Kernels::divide, {.out = 0, .b = 1}},
    {"aten::relu", "", &Kernels::relu, {}},
    {"aten::relu_", "", &Kernels::relu, {.out = 0}},
    {"aten::threshold_backward", "grad_input", &Kernels::threshold_backward, {.out = 3, .a = 1, .b = 0, .number = 2}},
    {"aten::sigmoid", "out", &Kernels::sigmoid, {.out = 1, .whole_vectors = true}},
    {"aten::sigmoid_backward", "grad_input", &Kernels::sigmoid_backward, {.out = 2, .b = 1}},
    {"aten::silu", "out", &Kernels::silu, {.out = 1, .whole_vectors = true}},
    {"aten::silu_backward", "grad_input", &Kernels::silu_backward, {.out = 2, .b = 1, .whole_vectors = true}},
    {"aten::neg", "out", &Kernels::negate, {.out = 1}},
    {"aten::rsqrt", "out", &Kernels::inverse_root, {.out = 1}},
    {"aten::reciprocal", "out", &Kernels::inverse, {.out = 1}},
    {"aten::pow", "Tensor_Scalar_out", &Kernels::copy, {.out = 2, .power = 1}},
    {"aten::pow", "Tensor_Scalar_out", &Kernels::square, {.out = 2, .power = 2}},
    {"aten::pow", "Tensor_Scalar_out", &Kernels::cube, {.out = 2, .power = 3}},
    {"aten::copy_", "", &Kernels::copy, {.out = 0, .a = 1}},
    {"aten::clone", "", &Kernels::copy, {}},
};

// One for all elements. That of a tensor is read when it is needed: it may change.
struct Number {
  at::Tensor tensor{};  // undefined: `value`
  double value = 0;

  float get() const {
    return static_cast<float>(tensor.defined() ? *static_cast<const double*>(tensor.const_data_ptr()) : value);
  }
};

// False: the argument is none.
bool number_of(const c10::IValue& argument, Number& number) {
  if (argument.isDouble() || argument.isInt()) {
    number.value = argument.isDouble() ? argument.toDouble() : static_cast<double>(argument.toInt());
    return true;
  }
  if (!argument.isTensor() || !argument.toTensor().defined()) return false;
  const at::Tensor& tensor = argument.toTensor();
  const bool is_number = tensor.is_cpu() && tensor.scalar_type() == at::kDouble && !tensor.is_neg() &&
                         tensor.unsafeGetTensorImpl()->is_wrapped_number();
  if (is_number) number.tensor = tensor;
  return is_number;
}

class PointwiseCall {
 public:
  // False: the op's kernel does not fit.
  bool find(const PointwiseOp& op, const OpCall& call) {
    kernel_ = cpu_kernels().pointwise.*op.kernel;
    const PointwiseOp::Details& with = op.with;
    const at::Tensor a = call.floats(with.a), y = with.out >= 0 ? call.floats(with.out) : call.result(0);
    Number power;
    if (kernel_ == nullptr || !a.defined() || !is_float(y) || (with.one >= 0 && !call.is_one(with.one))) return false;
    if (with.power != 0 && !(number_of(call.arguments[1], power) && power.get() == with.power)) return false;
    number_.value = with.value;
    if (with.number >= 0 && !number_of(call.arguments[with.number], number_)) return false;
    at::Tensor b;
    if (with.b >= 0 && !number_of(call.arguments[with.b], b_)) {
      b = call.floats(with.b);
      if (!b.defined()) return false;
    }
    loops_ = StridedLoops(y, a, b);
    return loops_.exist() && (!with.whole_vectors || are_whole_vectors(a, b)) && is_in_place_or_apart(y, a) &&
           is_in_place_or_apart(y, b) && pays() && !is_cut_within_vectors(elements(), loops_.innermost());
  }

  // What the tensors are cut into is known where they are in a chain alone.
  RowByRow rows() const {
    return {loops_.rows(), {}, [*this](int64_t begin, int64_t end) {
              loops_.run(kernel_, begin, end, {b_.get(), number_.get()});
            }};
  }
  RowByRow rows_of_chain() const {
    RowByRow work = rows();
    return loops_.go_by_parts(work.cut) ? work : RowByRow();
  }
  int64_t elements() const { return loops_.elements(); }

 private:
  // Not many short rows, nor so few long ones that threads would have nothing to do.
  bool pays() const {
    constexpr int64_t kShort = 16, kFew = 1 << 13;
    const bool are_short = loops_.innermost() < kShort && !loops_.is_one() && elements() > kFew;
    return !are_short && number_of_parts(loops_.rows(), elements()) == number_of_parts(elements(), elements());
  }
  bool are_whole_vectors(const at::Tensor& a, const at::Tensor& b) const {
    return loops_.is_one() && a.numel() == elements() && (!b.defined() || b.numel() == elements()) &&
           elements() % kVectors == 0;
  }
  static bool is_in_place_or_apart(const at::Tensor& y, const at::Tensor& from) {
    return !from.defined() || !from.is_alias_of(y) ||
           (from.storage_offset() == y.storage_offset() && from.sizes() == y.sizes() && from.strides() == y.strides());
  }

  PointwiseKernel kernel_ = nullptr;
  StridedLoops loops_;
  Number b_, number_;
};

// Calls use(found) with the first of the table that fits.
template <class Result>
Result with_pointwise(const OpCall& call, Result (*use)(const PointwiseCall& found)) {
  for (const PointwiseOp& op : kPointwiseOps) {
    PointwiseCall found;
    if (call.is(op.name, op.overload) && found.find(op, call)) return use(found);
  }
  return {};
}

RowByRow pointwise_rows(const OpCall& call) {
  return with_pointwise<RowByRow>(call, [](const PointwiseCall& found) { return found.rows_of_chain(); });
}

CallKernel make_pointwise(const OpCall& call) {
  return with_pointwise<CallKernel>(call, [](const PointwiseCall& found) -> CallKernel {
    return [work = found.rows(), elements = found.elements()] {
      run_all(work, elements);
      return true;
    };
  });
}

// All elements get the same number.
CallKernel make_fill(const OpCall& call) {
  const bool ones = call.is("aten::ones_like", ""), zeros = call.is("aten::zeros_like", "");
  Number number{{}, ones ? 1.0 : 0.0};
  const bool in_place =
      call.is("aten::zero_", "") ||
      (call.is("aten::fill_", "Scalar") && !call.arguments[1].isTensor() && number_of(call.arguments[1], number));
  if (!ones && !zeros && !in_place) return {};
  const at::Tensor y = in_place ? call.floats(0) : call.result(0);
  if (!y.defined() || y.scalar_type() != at::kFloat || !y.is_non_overlapping_and_dense()) return {};
  return [=] {
    for_each_part(y.numel(), y.numel(), [&](int64_t begin, int64_t end) {
      std::fill(writable_floats_of(y) + begin, writable_floats_of(y) + end, number.get());
    });
    return true;
  };
}

std::vector<CallKernelMaker> pointwise_makers() {
  std::vector<CallKernelMaker> makers;
  const auto add = [&](const char* op, const char* overload, CallKernel (*make)(const OpCall&),
                       RowByRow (*by_rows)(const OpCall&) = nullptr) {
    makers.push_back({op, overload, "direct arithmetic", make, {.elementwise = true}, by_rows});
  };
  for (const PointwiseOp& op : kPointwiseOps) {
    const bool is_there = !makers.empty() && std::strcmp(makers.back().op, op.name) == 0 &&
                          std::strcmp(makers.back().overload, op.overload) == 0;
    if (!is_there) add(op.name, op.overload, make_pointwise, pointwise_rows);
  }
  add("aten::ones_like", "", make_fill);
  add("aten::zeros_like", "", make_fill);
  add("aten::zero_", "", make_fill);
  add("aten::fill_", "Scalar", make_fill);
  return makers;
}

}  // namespace

void find_direct_pointwise(const std::vector<OpCall>& calls, BitexactKernels& kernels) {
  static const std::vector<CallKernelMaker> makers = pointwise_makers();
  if (!kernel_settings().flushes_denormals && threads_round_alike()) find_call_kernels(makers, calls, kernels);
}

}  // namespace duet
