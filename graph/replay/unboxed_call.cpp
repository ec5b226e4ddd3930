#include "graph/replay/unboxed_call.h"
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <ATen/ops/_log_softmax_backward_data_ops.h>
#include <ATen/ops/_log_softmax_ops.h>
#include <ATen/ops/add_ops.h>
#include <ATen/ops/addmm_ops.h>
#include <ATen/ops/argmax_ops.h>
#include <ATen/ops/cat_ops.h>
#include <ATen/ops/gelu_backward_ops.h>
#include <ATen/ops/gelu_ops.h>
#include <ATen/ops/mean_ops.h>
#include <ATen/ops/mm_ops.h>
#include <ATen/ops/mul_ops.h>
#include <ATen/ops/native_batch_norm_ops.h>
#include <ATen/ops/ne_ops.h>
#include <ATen/ops/nll_loss2d_backward_ops.h>
#include <ATen/ops/nll_loss2d_forward_ops.h>
#include <ATen/ops/nll_loss_backward_ops.h>
#include <ATen/ops/nll_loss_forward_ops.h>
#include <ATen/ops/stack_ops.h>
#include <ATen/ops/sum_ops.h>
#include <ATen/ops/threshold_backward_ops.h>

namespace duet {

namespace {

template <class Parameter>
decltype(auto) argument_as(const c10::IValue& value) {
  using Plain = std::remove_cvref_t<Parameter>;
  if constexpr (std::is_same_v<Plain, at::Tensor>) {
    return const_cast<Parameter>(value.toTensor());  // the op writes to some
  } else if constexpr (std::is_same_v<Plain, at::ITensorListRef>) {
    return value.toTensorList();
  } else if constexpr (std::is_same_v<Plain, at::TensorList>) {
    return value.toTensorVector();
  } else if constexpr (std::is_same_v<Plain, at::OptionalIntArrayRef>) {
    return value.to<c10::OptionalArray<int64_t>>();
  } else {
    return value.to<Plain>();
  }
}

template <class Op, class Result, class... Parameters, std::size_t... I>
void call(const std::vector<c10::IValue>& arguments, Result (*)(Parameters...), std::index_sequence<I...>) {
  Op::redispatch(c10::DispatchKeySet(c10::DispatchKey::CPU), argument_as<Parameters>(arguments[I])...);
}

template <class Result, class... Parameters>
constexpr auto positions_of(Result (*)(Parameters...)) {
  return std::index_sequence_for<Parameters...>();
}

template <class... Ops>
std::unordered_map<c10::OperatorName, UnboxedCall> calls_of() {
  std::unordered_map<c10::OperatorName, UnboxedCall> calls;
  const auto add = [&]<class Op>(Op*) {
    using Schema = typename Op::ptr_schema;
    calls[{Op::name, Op::overload_name}] = [](const std::vector<c10::IValue>& arguments) {
      call<Op>(arguments, Schema(), positions_of(Schema()));
    };
  };
  (add(static_cast<Ops*>(nullptr)), ...);
  return calls;
}

}  // namespace

UnboxedCall unboxed_call(const c10::OperatorHandle& op) {
  using namespace at::_ops;
  static const auto calls =
      calls_of<mm_out, addmm_out, add_out, add__Tensor, add__Scalar, mul_out, ne_Tensor_out,
               threshold_backward_grad_input, gelu_out, gelu_backward_grad_input, sum_IntList_out, mean_out, argmax_out,
               cat_out, stack_out, _log_softmax_out, _log_softmax_backward_data_out, nll_loss_forward_output,
               nll_loss_backward_grad_input, nll_loss2d_forward_output, nll_loss2d_backward_grad_input,
               native_batch_norm_out>();
  const auto found = calls.find(op.operator_name());
  return found == calls.end() ? nullptr : found->second;
}

}  // namespace duet
