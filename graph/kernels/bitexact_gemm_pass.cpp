#include "graph/kernels/bitexact_gemm_trial.h"
#include "graph/kernels/bitexact_kernel.h"

namespace duet {

namespace {

bool is_one(const c10::IValue& value) {
  return value.isInt() ? value.toInt() == 1 : value.isDouble() && value.toDouble() == 1;
}

// mm(a, b, out), or addmm(bias, a, b, beta = 1, alpha = 1, out); undefined tensors for anything else.
GemmTensors gemm_of(const OpCall& call) {
  if (call.is("aten::mm", "out")) return {call.floats(0), call.floats(1), call.floats(2), {}, {}};
  if (!call.is("aten::addmm", "out") || !is_one(call.arguments[3]) || !is_one(call.arguments[4])) return {};
  GemmTensors tensors{call.floats(1), call.floats(2), call.floats(5), call.floats(0), {}};
  return tensors.before.defined() ? tensors : GemmTensors();
}

// The row that the call adds to all of `out`, if it does nothing else: add_(view of out, bias, alpha = 1).
at::Tensor bias_added_to(const at::Tensor& out, const OpCall& call) {
  if (!call.is("aten::add_", "Tensor") || !is_one(call.arguments[2])) return {};
  const at::Tensor target = call.floats(0);
  const at::Tensor bias = call.floats(1);
  if (!target.defined() || !bias.defined() || bias.dim() != 1) return {};
  const bool whole = target.is_alias_of(out) && target.numel() == out.numel() && out.is_contiguous() &&
                     target.is_contiguous() && target.storage_offset() == out.storage_offset() &&
                     target.size(-1) == out.size(1);
  return whole && !bias.is_alias_of(out) ? bias : at::Tensor();
}

}  // namespace

void find_bitexact_gemms(const std::vector<OpCall>& calls, BitexactKernels& kernels) {
  const GemmKernel kernel = fast_gemm_kernel();
  for (std::size_t i = 0; kernel != nullptr && i < calls.size(); ++i) {
    GemmTensors tensors = gemm_of(calls[i]);
    if (!tensors.a.defined() || !tensors.b.defined() || !tensors.out.defined() || !can_address(tensors)) continue;
    const bool has_next = i + 1 < calls.size() && calls[i + 1].segment == calls[i].segment && !tensors.before.defined();
    if (has_next) tensors.after = bias_added_to(tensors.out, calls[i + 1]);
    if (!can_address(tensors)) tensors.after = at::Tensor();
    const int64_t k_block = bitexact_k_block(tensors, kernel);
    if (k_block == 0) continue;
    const GemmRunner runner(kernel, tensors, k_block);
    kernels.bytes += runner.bytes();
    const bool adds_bias = tensors.after.defined();
    kernels.of_call[i] = {[runner, tensors] { runner.run(tensors); },
                          adds_bias ? "bit-exact gemm, adds the bias" : "bit-exact gemm"};
    if (adds_bias) kernels.of_call[i + 1] = {[] {}, "done above"};
  }
}

}  // namespace duet
