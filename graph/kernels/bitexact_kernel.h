#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <utility>
#include <vector>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/util/Exception.h>
#include <c10/util/FunctionRef.h>

namespace duet {

// What decides how LibTorch's CPU kernels round: kernels that were compared under other settings may not be used.
struct KernelSettings {
  int threads = 0;
  int blas_threads = 0;            // of MKL, which has a setting of its own
  bool in_parallel = false;        // a parallel region computes each op with one thread
  int precision = 0;               // of float products: a user may allow bfloat16 or TF32 in them
  bool flushes_denormals = false;  // of the calling thread, which other threads need not share
  int rounding = 0;                // <cfenv>'s mode, of the calling thread
  bool operator==(const KernelSettings&) const = default;
};
KernelSettings kernel_settings();

// Runs task(0) ... task(count - 1) and returns when all are done: on the threads that LibTorch computes with
// (OpenMP's), or one after the other if this LibTorch has none. A task must not throw.
void run_tasks(int64_t count, c10::function_ref<void(int64_t)> task);

// How a kernel does its work row by row: row i reads and writes the i-th of `rows` equal parts of the tensors that are
// cut, and of others what nobody writes meanwhile.
struct RowByRow {
  int64_t rows = 0;               // 0: it does not
  std::vector<at::Tensor> cut{};  // without gaps
  std::function<void(int64_t begin, int64_t end)> run{};
  std::function<void()> before{};  // what all rows need first; it may read what is cut
};

// A faster way to do what one instruction of a CpuProgram does, with the bits that ATen's kernel gives.
struct BitexactKernel {
  std::function<void()> run;     // empty: ATen's own kernel is to run
  const char* name = "";         // for CpuProgram::text
  std::ptrdiff_t together = -1;  // the first of several calls whose kernels only work together; -1: works alone
  bool elementwise = false;      // reads each element of its inputs no later than it writes the one in the same place
  RowByRow by_rows{};            // how it does the same in a chain
  bool in_chain = false;         // dropped when any pass is switched off: the kernel of a member may be that pass's
  const struct KernelPass* pass{};  // that found it; set by find_bitexact_kernels
};

// What a pass sees of an instruction: the op that runs and the arguments that it gets every time. The memory of the
// tensors may differ from run to run.
struct OpCall {
  c10::OperatorHandle op;
  std::vector<c10::IValue> arguments;
  std::size_t segment = 0;            // host code runs between two segments
  std::vector<at::Tensor> results{};  // undefined: one that the op does not give
  bool grad_mode = true;              // when it was recorded: oneDNN's RNN makes a workspace only then

  bool is(const char* name, const char* overload) const {
    return op.operator_name().name == name && op.operator_name().overload_name == overload;
  }
  // The argument as a dense float tensor on the CPU; undefined if it is anything else.
  at::Tensor floats(std::size_t argument) const;
  bool is_one(std::size_t argument) const;  // the number, of whatever type
  // Whether the argument is an optional tensor that is not given.
  bool lacks(std::size_t argument) const;
  at::Tensor result(std::size_t index) const { return index < results.size() ? results[index] : at::Tensor(); }
  // Whether it may change elements of `tensor`'s storage.
  bool writes(const at::Tensor& tensor) const;
  // As ATen computes it, into `results` where it gives some.
  void run_as_aten() const;
};

struct BitexactKernels {
  // Memory that kernels hand on from one call to a later one; the program gives it.
  struct Scratch {
    c10::Storage storage;
    std::size_t first, last;  // calls
  };

  std::vector<BitexactKernel> of_call{};
  std::vector<Scratch> scratch{};
  std::vector<std::pair<std::size_t, std::size_t>> chains{};  // first and last call of each; they run at the first
  bool may_try = true;       // kernels that this process has not tried yet, which takes longer than many steps
  bool untried = false;      // some were left out because of that
  bool may_be_slow = false;  // those too that take longer than ATen's
  bool may_chain = true;     // no two storages that exist before a step have memory in common
};

// Such as one for which there is too little memory: ATen's kernel stays.
void warn_of_failed_trial(const c10::Error& error);

// What trials have found, each of which is made once in a process.
template <class Key, class Found>
class Trials {
 public:
  // Found() where it is not known and may not be tried now.
  template <class Try>
  Found of(const Key& key, BitexactKernels& kernels, Try trial) {
    const std::lock_guard lock(mutex_);
    auto known = known_.find(key);
    if (known == known_.end()) {
      kernels.untried = kernels.untried || !kernels.may_try;
      if (!kernels.may_try) return Found();
      known = known_.emplace(key, Found()).first;  // what cannot be tried is not tried again
      try {
        known->second = trial();
      } catch (const c10::Error& error) {
        warn_of_failed_trial(error);
      }
    }
    return known->second;
  }

 private:
  std::mutex mutex_;
  std::map<Key, Found> known_;
};

// Finds the calls that kernels of one kind may take over, and gives them to `kernels`.
using FindKernels = void(const std::vector<OpCall>& calls, BitexactKernels& kernels);
struct KernelPass {
  const char* name;
  FindKernels* find;
  mutable std::atomic<bool> is_off = false;  // see switch_off
};
using KernelPasses = std::vector<const KernelPass*>;
// All of those below.
const KernelPasses& bitexact_passes();

// Leaves out passes that were switched off. `kernels` says what they may do.
BitexactKernels find_bitexact_kernels(const std::vector<OpCall>& calls, const KernelPasses& passes,
                                      BitexactKernels kernels = {});

// For the rest of the process: a kernel of the pass gave other bits than ATen's.
void switch_off(const KernelPass& pass);
int64_t passes_switched_off();  // how many

// Each says where it stands what it takes.
FindKernels find_bitexact_gemms, find_bitexact_gelus, find_bitexact_max_pools, find_bitexact_batch_norms;
FindKernels find_bitexact_convs, find_bitexact_lstms;
FindKernels find_bitexact_rows, find_bitexact_attention, find_bitexact_adamw, find_bitexact_sgd;
FindKernels find_bitexact_bernoullis, find_direct_calls, find_direct_pointwise, find_direct_rows, find_direct_results;
FindKernels find_chains;

}  // namespace duet
