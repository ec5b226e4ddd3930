#include <ATen/ops/mean.h>
#include "graph/kernels/call_kernels.h"
#include "graph/kernels/kernel_tensors.h"

// Ops that ATen gives no result to write into, by kernels of its own that take one: a step allocates nothing for them.

namespace duet {

namespace {

CallKernel make_direct_result(const OpCall& call) {
  at::Tensor x = call.floats(0), y = call.result(0);
  if (!x.defined() || !is_float(y)) return {};
  std::function<void()> run;
  if (call.is("aten::mean", "")) {
    run = [x, y]() mutable { at::mean_out(y, x, at::OptionalIntArrayRef(), /*keepdim=*/false); };
  } else {
    run = [x, y, dim = call.arguments[2].toInt(), index = call.arguments[3].toInt()] {
      y.zero_();
      y.select(dim, index).copy_(x);
    };
  }
  return [run = std::move(run)] {
    run();
    return true;
  };
}

bool is_plain(const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_cpu() && tensor.layout() == at::kStrided && !tensor.is_neg() &&
         !tensor.is_conj();
}

}  // namespace

void find_direct_results(const std::vector<OpCall>& calls, BitexactKernels& kernels) {
  static const std::vector<CallKernelMaker> makers = {
      {"aten::mean", "", "direct result", make_direct_result},
      {"aten::select_backward", "", "direct result", make_direct_result}};
  find_call_kernels(makers, calls, kernels);
  for (std::size_t i = 0; i < calls.size(); ++i) {  // by definition a copy
    const OpCall& call = calls[i];
    if (kernels.of_call[i].run || !(call.is("aten::clone", "") || call.is("aten::_to_copy", ""))) continue;
    const at::Tensor x = call.arguments[0].toTensor(), y = call.result(0);
    if (is_plain(x) && is_plain(y)) kernels.of_call[i] = {[x, y] { y.copy_(x); }, "direct result"};
  }
}

}  // namespace duet
