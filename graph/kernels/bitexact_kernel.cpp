#include "graph/kernels/bitexact_kernel.h"
#include <algorithm>
#include <cfenv>
#include <string>
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/core/grad_mode.h>
#include <dlfcn.h>
#include "base/detail/op_rules.h"
#include "base/detail/stack_tensors.h"
#include "base/detail/text.h"
#include "base/log.h"
#include "graph/kernels/cpu_kernels.h"
#include "graph/kernels/kernel_tensors.h"
#include "graph/record/thread_settings.h"

namespace duet {

namespace {

// Of the MKL inside LibTorch; 0 if it has another BLAS.
int blas_threads() {
  static const auto found = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "MKL_Get_Max_Threads"));
  return found != nullptr ? found() : 0;
}

}  // namespace

void warn_of_failed_trial(const c10::Error& error) {
  log_warning("[GraphTrainer] a kernel cannot be tried, ATen's stays (" + first_line(error) + ")");
}

KernelSettings kernel_settings() {
  const auto precision = at::globalContext().float32Precision(at::Float32Backend::MKLDNN, at::Float32Op::MATMUL);
  return {at::get_num_threads(),       blas_threads(),      at::in_parallel_region(),
          static_cast<int>(precision), flushes_denormals(), std::fegetround()};
}

const CpuKernels& cpu_kernels() {
  static const CpuKernels kernels = [] {
    const std::string atens = at::get_cpu_capability();
    if (atens == "AVX2") return avx2_kernels();
    if (atens != "AVX512") return kNoKernels;
    CpuKernels wide = avx512_kernels();
    const CpuKernels narrow = avx2_kernels();
    wide.batch_norm.backward = narrow.batch_norm.backward;
    wide.rows = narrow.rows;
    wide.lstm = narrow.lstm;
    return wide;
  }();
  return kernels;
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
  c10::function_ref<void(int64_t)> task;
  std::atomic<int64_t> next{0};
};

void take_tasks(void* data) {
  Work& work = *static_cast<Work*>(data);
  for (int64_t i = work.next++; i < work.count; i = work.next++) work.task(i);
}

}  // namespace

void run_tasks(int64_t count, c10::function_ref<void(int64_t)> task) {
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
  return is_float(tensor) ? tensor : at::Tensor();
}

bool OpCall::is_one(std::size_t argument) const {
  const c10::IValue& value = arguments[argument];
  return value.isInt() ? value.toInt() == 1 : value.isDouble() && value.toDouble() == 1;
}

bool OpCall::lacks(std::size_t argument) const {
  if (argument >= arguments.size()) return true;
  return arguments[argument].isNone() || (arguments[argument].isTensor() && !arguments[argument].toTensor().defined());
}

void OpCall::run_as_aten() const {
  const at::AutoGradMode as_recorded(grad_mode);
  std::vector<c10::IValue> stack = arguments;
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (results[i].defined() && !results[i].is_same(stack[i].toTensor())) results[i].copy_(stack[i].toTensor());
  }
}

bool OpCall::writes(const at::Tensor& tensor) const {
  bool writes_it = false;
  const auto look = [&](const at::Tensor& other) {
    writes_it = writes_it || (other.has_storage() &&
                              other.storage().unsafeGetStorageImpl() == tensor.storage().unsafeGetStorageImpl());
  };
  const auto& schema = op.schema().arguments();
  const std::vector<std::size_t> hidden = hidden_writes(op);
  for (std::size_t i = 0; i < arguments.size() && i < schema.size(); ++i) {
    const bool is_hidden = std::find(hidden.begin(), hidden.end(), i) != hidden.end();
    if (is_hidden || duet::writes(schema[i])) for_each_tensor(arguments[i], look);
  }
  return writes_it;
}

namespace {

std::atomic<int64_t> switched_off = 0;

}  // namespace

void switch_off(const KernelPass& pass) { switched_off += pass.is_off.exchange(true) ? 0 : 1; }

int64_t passes_switched_off() { return switched_off; }

// The direct ones take what no other has taken, chains what others have found.
const KernelPasses& bitexact_passes() {
  static const KernelPass passes[] = {{"gemm", find_bitexact_gemms},
                                      {"gelu", find_bitexact_gelus},
                                      {"max_pool2d", find_bitexact_max_pools},
                                      {"batch norm", find_bitexact_batch_norms},
                                      {"convolution", find_bitexact_convs},
                                      {"LSTM", find_bitexact_lstms},
                                      {"row", find_bitexact_rows},
                                      {"attention", find_bitexact_attention},
                                      {"AdamW", find_bitexact_adamw},
                                      {"SGD", find_bitexact_sgd},
                                      {"bernoulli", find_bitexact_bernoullis},
                                      {"direct call", find_direct_calls},
                                      {"direct arithmetic", find_direct_pointwise},
                                      {"direct rows", find_direct_rows},
                                      {"direct result", find_direct_results},
                                      {"chain", find_chains}};
  static const KernelPasses all = [] {
    KernelPasses found;
    for (const KernelPass& pass : passes) found.push_back(&pass);
    return found;
  }();
  return all;
}

BitexactKernels find_bitexact_kernels(const std::vector<OpCall>& calls, const KernelPasses& passes,
                                      BitexactKernels kernels) {
  kernels.of_call.resize(calls.size());
  for (const KernelPass* pass : passes) {
    if (pass->is_off) continue;
    pass->find(calls, kernels);
    for (BitexactKernel& kernel : kernels.of_call) {
      if (kernel.run && kernel.pass == nullptr) kernel.pass = pass;
    }
  }
  return kernels;
}

}  // namespace duet
