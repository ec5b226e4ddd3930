#include "graph/kernels/bitexact_kernel.h"
#include "graph/record/op_rules.h"

namespace duet {

at::Tensor OpCall::floats(std::size_t argument) const {
  if (argument >= arguments.size() || !arguments[argument].isTensor()) return {};
  const at::Tensor& tensor = arguments[argument].toTensor();
  const bool fits = tensor.defined() && tensor.is_cpu() && tensor.layout() == at::kStrided &&
                    tensor.scalar_type() == at::kFloat && !tensor.is_neg();
  return fits ? tensor : at::Tensor();
}

bool OpCall::writes(const at::Tensor& tensor) const {
  const auto same_memory = [&](const at::Tensor& other) {
    return other.defined() && other.has_storage() &&
           other.storage().unsafeGetStorageImpl() == tensor.storage().unsafeGetStorageImpl();
  };
  const auto& schema = op.schema().arguments();
  const std::vector<std::size_t> hidden = hidden_writes(op);
  for (std::size_t i = 0; i < arguments.size() && i < schema.size(); ++i) {
    bool written = schema[i].alias_info() != nullptr && schema[i].alias_info()->isWrite();
    for (const std::size_t position : hidden) written = written || position == i;
    if (!written) continue;
    if (arguments[i].isTensor() && same_memory(arguments[i].toTensor())) return true;
    if (!arguments[i].isTensorList()) continue;
    for (const c10::IValue& item : arguments[i].toListRef()) {
      if (same_memory(item.toTensor())) return true;
    }
  }
  return false;
}

BitexactKernels find_bitexact_kernels(const std::vector<OpCall>& calls) {
  BitexactKernels kernels;
  kernels.of_call.resize(calls.size());
  find_bitexact_gemms(calls, kernels);
  find_bitexact_gelus(calls, kernels);
  return kernels;
}

}  // namespace duet
