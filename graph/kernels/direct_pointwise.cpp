#include <algorithm>
#include "graph/kernels/call_kernels.h"
#include "graph/kernels/cpu_kernels.h"
#include "graph/kernels/kernel_tensors.h"

// Arithmetic on each element by itself without what ATen does before it: checks, broadcasting, allocation.

namespace duet {

namespace {

// Where the arguments of an op stand; -1: it has none such.
struct PointwiseOp {
  const char* name;
  const char* overload;
  PointwiseKernel PointwiseKernels::* kernel;
  int a, b;
  int alpha = -1;   // a factor of b that must be 1
  int number = -1;  // besides b
  int out = -1;     // the op makes its result
};

constexpr PointwiseOp kPointwiseOps[] = {
    {"aten::add", "out", &PointwiseKernels::add, 0, 1, 2, -1, 3},
    {"aten::add_", "Tensor", &PointwiseKernels::add, 0, 1, 2, -1, 0},
    {"aten::add_", "Scalar", &PointwiseKernels::add, 0, 1, 2, -1, 0},
    {"aten::add", "Scalar", &PointwiseKernels::add, 0, 1, 2},
    {"aten::mul", "Scalar", &PointwiseKernels::multiply, 0, 1},
    {"aten::div", "Scalar", &PointwiseKernels::divide, 0, 1},
    {"aten::sub", "out", &PointwiseKernels::subtract, 0, 1, 2, -1, 3},
    {"aten::sub_", "Tensor", &PointwiseKernels::subtract, 0, 1, 2, -1, 0},
    {"aten::mul", "out", &PointwiseKernels::multiply, 0, 1, -1, -1, 2},
    {"aten::mul_", "Tensor", &PointwiseKernels::multiply, 0, 1, -1, -1, 0},
    {"aten::mul_", "Scalar", &PointwiseKernels::multiply, 0, 1, -1, -1, 0},
    {"aten::div", "out", &PointwiseKernels::divide, 0, 1, -1, -1, 2},
    {"aten::div_", "Tensor", &PointwiseKernels::divide, 0, 1, -1, -1, 0},
    {"aten::div_", "Scalar", &PointwiseKernels::divide, 0, 1, -1, -1, 0},
    {"aten::relu", "", &PointwiseKernels::relu, 0, -1, -1, -1, -1},
    {"aten::relu_", "", &PointwiseKernels::relu, 0, -1, -1, -1, 0},
    {"aten::threshold_backward", "grad_input", &PointwiseKernels::threshold_backward, 1, 0, -1, 2, 3},
};

// One for all elements. That of a tensor is read when it is needed: it may change.
struct Number {
  at::Tensor tensor;  // undefined: `value`
  double value = 0;

  float get() const {
    if (!tensor.defined()) return static_cast<float>(value);
    if (tensor.scalar_type() == at::kFloat) return *floats_of(tensor);
    return static_cast<float>(*static_cast<const double*>(tensor.const_data_ptr()));
  }
};

bool number_of(const c10::IValue& argument, Number& number) {
  if (argument.isDouble() || argument.isInt()) {
    number.value = argument.isDouble() ? argument.toDouble() : static_cast<double>(argument.toInt());
    return true;
  }
  if (!argument.isTensor() || !argument.toTensor().defined()) return false;
  number.tensor = argument.toTensor();
  const bool is_scalar = number.tensor.is_cpu() && number.tensor.numel() == 1 && !number.tensor.is_neg();
  const bool wrapped =
      number.tensor.scalar_type() == at::kDouble && number.tensor.unsafeGetTensorImpl()->is_wrapped_number();
  return is_scalar && (number.tensor.scalar_type() == at::kFloat || wrapped);
}

// Whether `row` fits below each other to all of `whole`.
bool is_row_of(const at::Tensor& row, const at::Tensor& whole) {
  if (!row.is_contiguous() || !whole.is_contiguous() || row.dim() > whole.dim()) return false;
  const auto matches = [&](int64_t d) { return row.size(-d) == whole.size(-d); };
  int64_t d = 1;
  while (d <= row.dim() && matches(d)) ++d;
  for (; d <= row.dim(); ++d) {
    if (row.size(-d) != 1) return false;
  }
  return true;
}

bool laid_out_alike(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && (a.strides() == b.strides() || (a.is_contiguous() && b.is_contiguous()));
}

// Whether ATen's threads share the work so that their parts, or rows of this width, do not end between vectors, as
// those of our threads may.
bool is_cut_within_vectors(int64_t count, int64_t width) {
  constexpr int64_t kAtensGrain = 1 << 15, kVectors = 64;
  const int64_t length = length_of_ranges(count, kAtensGrain);
  return length != count && (length % kVectors != 0 || width % kVectors != 0);
}

class PointwiseCall {
 public:
  bool find(const PointwiseOp& op, const OpCall& call) {
    a_ = call.floats(op.a);
    y_ = op.out >= 0 ? call.floats(op.out) : call.result(0);
    const bool fits = a_.defined() && y_.defined() && y_.scalar_type() == at::kFloat && a_.numel() > 0 &&
                      a_.is_non_overlapping_and_dense() && laid_out_alike(a_, y_);
    if (!fits || (op.alpha >= 0 && !call.is_one(op.alpha))) return false;
    if (op.number >= 0 && !number_of(call.arguments[op.number], number_)) return false;
    return (op.b < 0 || take_b(call, op.b)) && !is_cut_within_vectors(a_.numel(), has_row() ? b_.numel() : a_.numel());
  }

  // Of a whose rows b fits to; else single elements.
  int64_t rows() const { return has_row() ? a_.numel() / b_.numel() : a_.numel(); }
  std::vector<at::Tensor> cut() const {
    std::vector<at::Tensor> tensors = {a_, y_};
    if (b_.defined() && !has_row()) tensors.push_back(b_);
    return tensors;
  }

  void run(PointwiseKernel kernel, int64_t begin, int64_t end) const {
    const int64_t width = has_row() ? b_.numel() : 1, first = begin * width;
    const float* const b = b_.defined() && !has_row() ? floats_of(b_) + first : floats_of(b_);
    const int64_t count = has_row() ? end - begin : 1;
    kernel({floats_of(a_) + first, b, writable_floats_of(y_) + first, count, (end - begin) * width / count,
            number_.get()});
  }

 private:
  bool take_b(const OpCall& call, int index) {
    const at::Tensor b = call.floats(index);
    const bool same = b.defined() && laid_out_alike(a_, b);
    if (!same && number_of(call.arguments[index], number_)) return share_no_memory({y_}, {number_.tensor});
    if (!b.defined() || b.numel() == 0 || !(same || is_row_of(b, a_))) return false;
    b_ = b;
    return same || share_no_memory({y_}, {b});
  }
  bool has_row() const { return b_.defined() && b_.numel() < a_.numel(); }

  at::Tensor a_, b_, y_;
  Number number_;
};

// Row by row, whether it stands alone or in a chain.
RowByRow pointwise_rows(const OpCall& call) {
  for (const PointwiseOp& op : kPointwiseOps) {
    const PointwiseKernel kernel = cpu_kernels().pointwise.*op.kernel;
    PointwiseCall pointwise;
    if (!call.is(op.name, op.overload) || kernel == nullptr || !pointwise.find(op, call)) continue;
    return {pointwise.rows(), pointwise.cut(), [=](int64_t begin, int64_t end) { pointwise.run(kernel, begin, end); }};
  }
  return {};
}

CallKernel make_pointwise(const OpCall& call) {
  const RowByRow work = pointwise_rows(call);
  if (work.rows == 0) return {};
  return [work, elements = work.cut.front().numel()] {
    run_all(work, elements);
    return true;
  };
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
    makers.push_back({op, overload, "direct arithmetic", make, -1, /*dims_of_rows=*/0, /*elementwise=*/true, by_rows});
  };
  for (const PointwiseOp& op : kPointwiseOps) add(op.name, op.overload, make_pointwise, pointwise_rows);
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
