#include "graph/kernels/bitexact_kernel.h"
#include <algorithm>
#include <atomic>
#include <limits>
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <dlfcn.h>
#include "base/detail/op_rules.h"

namespace duet {

namespace {

// LibTorch can set this mode but not tell it.
bool flushes_denormals() {
  const volatile float smallest = std::numeric_limits<float>::min();
  const volatile float half = smallest / 2;
  return half == 0;
}

}  // namespace

KernelSettings kernel_settings() {
  const auto precision = at::globalContext().float32Precision(at::Float32Backend::MKLDNN, at::Float32Op::MATMUL);
  return {at::get_num_threads(), static_cast<int>(precision), flushes_denormals()};
}

namespace {

// What `#pragma omp parallel` compiles to. Looked up instead of linked: the threads must be those of the OpenMP library
// that LibTorch brought, and duet itself needs none.
using Parallel = void (*)(void (*body)(void*), void* data, unsigned threads, unsigned flags);

Parallel openmp_parallel() {
  static const auto found = reinterpret_cast<Parallel>(dlsym(RTLD_DEFAULT, "GOMP_parallel"));
  return found;
}

struct Work {
  int64_t count;
  const std::function<void(int64_t)>& task;
  std::atomic<int64_t> next{0};
};

void take_tasks(void* data) {
  Work& work = *static_cast<Work*>(data);
  for (int64_t i = work.next++; i < work.count; i = work.next++) work.task(i);
}

}  // namespace

void run_tasks(int64_t count, const std::function<void(int64_t)>& task) {
  Work work{count, task};
  const Parallel parallel = count > 1 ? openmp_parallel() : nullptr;
  if (parallel != nullptr) {
    parallel(take_tasks, &work, static_cast<unsigned>(count), 0);
  } else {
    take_tasks(&work);
  }
}

at::Tensor OpCall::floats(std::size_t argument) const {
  if (argument >= arguments.size() || !arguments[argument].isTensor()) return {};
  const at::Tensor& tensor = arguments[argument].toTensor();
  const bool fits = tensor.defined() && tensor.is_cpu() && tensor.layout() == at::kStrided &&
                    tensor.scalar_type() == at::kFloat && !tensor.is_neg();
  return fits ? tensor : at::Tensor();
}

bool OpCall::lacks(std::size_t argument) const {
  if (argument >= arguments.size()) return true;
  return arguments[argument].isNone() || (arguments[argument].isTensor() && !arguments[argument].toTensor().defined());
}

bool OpCall::writes(const at::Tensor& tensor) const {
  const auto same_memory = [&](const at::Tensor& other) {
    return other.defined() && other.has_storage() &&
           other.storage().unsafeGetStorageImpl() == tensor.storage().unsafeGetStorageImpl();
  };
  const auto& schema = op.schema().arguments();
  const std::vector<std::size_t> hidden = hidden_writes(op);
  for (std::size_t i = 0; i < arguments.size() && i < schema.size(); ++i) {
    const bool is_hidden = std::find(hidden.begin(), hidden.end(), i) != hidden.end();
    if (!is_hidden && !duet::writes(schema[i])) continue;
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
  find_bitexact_max_pools(calls, kernels);
  find_bitexact_batch_norms(calls, kernels);
  return kernels;
}

}  // namespace duet
