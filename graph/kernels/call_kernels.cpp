#include "graph/kernels/call_kernels.h"
#include <algorithm>
#include <sstream>
#include <string>
#include <utility>
#include <c10/util/StringUtil.h>
#include "graph/kernels/trial_data.h"

namespace duet {

namespace {

void describe(std::ostream& out, const at::Tensor& tensor, std::vector<at::Tensor>& seen) {
  if (!tensor.defined()) return void(out << "none;");
  const auto same = std::ranges::find_if(seen, [&](const at::Tensor& other) { return other.is_same(tensor); });
  out << same - seen.begin() << tensor.scalar_type() << tensor.sizes() << tensor.strides()
      << floats_past_alignment(tensor) << ";";
  seen.push_back(tensor);
}

// All that the order of ATen's arithmetic may depend on.
std::string kind_of(const OpCall& call) {
  std::ostringstream out;
  std::vector<at::Tensor> seen;
  const KernelSettings now = kernel_settings();
  out << call.op.operator_name()
      << c10::str(";", now.threads, ";", now.blas_threads, ";", now.in_parallel, ";", now.precision, ";",
                  now.flushes_denormals, ";");
  for (const c10::IValue& argument : call.arguments) {
    if (argument.isTensor()) {
      describe(out, argument.toTensor(), seen);
    } else {
      out << argument << ";";
    }
  }
  for (const at::Tensor& result : call.results) describe(out, result, seen);
  return std::move(out).str();
}

bool is_known_bitexact(const CallKernelMaker& maker, const OpCall& call, BitexactKernels& kernels) {
  static Trials<std::string, bool> trials;
  const auto* const make = reinterpret_cast<const void*>(maker.make);
  return trials.of(kind_of(call) + c10::str(make), kernels, [&] { return is_bitexact(maker, call); });
}

}  // namespace

void find_call_kernels(const std::vector<CallKernelMaker>& makers, const std::vector<OpCall>& calls,
                       BitexactKernels& kernels) {
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const OpCall& call = calls[i];
    for (const CallKernelMaker& maker : makers) {
      if (kernels.of_call[i].run || !call.is(maker.op, maker.overload)) continue;
      CallKernel kernel = maker.make(call);
      if (!kernel || !is_known_bitexact(maker, call, kernels)) continue;
      const AtenCall atens{call.op, call.arguments, call.results};
      kernels.of_call[i] = {[kernel = std::move(kernel), atens] {
                              if (!kernel()) atens.run();
                            },
                            maker.name};
    }
  }
}

}  // namespace duet
