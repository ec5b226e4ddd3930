#pragma once

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include "base/detail/bits.h"
#include "base/detail/stack_tensors.h"
#include "base/device.h"
#include "graph/kernels/bitexact_kernel.h"
#include "graph/kernels/cpu_kernels.h"
#include "graph/kernels/trial_data.h"

// What the tests of single kernels share.

namespace duet::testing {

inline bool has_kernels() { return cpu_kernels().gemm != nullptr; }

// Whether oneDNN computes with these instructions, as ATen does.
inline bool computes_as_onednn_with(const std::string& instructions) {
  const char* limit = std::getenv("ONEDNN_MAX_CPU_ISA");
  const bool only_avx2 = (limit != nullptr && std::string(limit) == "AVX2") || !__builtin_cpu_supports("avx512f");
  return has_kernels() && at::get_cpu_capability() == instructions && only_avx2 == (instructions == "AVX2");
}

struct Threads {
  explicit Threads(int count) : before(at::get_num_threads()) { at::set_num_threads(count); }
  ~Threads() { at::set_num_threads(before); }
  int before;
};

// False: this CPU cannot.
struct FlushedDenormals {
  const bool possible = at::globalContext().setFlushDenormal(true);
  ~FlushedDenormals() { at::globalContext().setFlushDenormal(false); }
};

// A random source that tells its seed where a test fails: SCOPED_TRACE(random.seed).
struct Random {
  uint64_t seed = std::random_device{}();
  std::mt19937_64 bits{seed};

  int64_t between(int64_t low, int64_t high) { return low + static_cast<int64_t>(bits() % (high - low + 1)); }
  bool coin() { return (bits() & 1) != 0; }
  template <class Item>
  Item one_of(const std::vector<Item>& items) {
    return items[bits() % items.size()];
  }
};

// Floats of one kind: those of trial_data.h, and four more.
constexpr int kKinds = 9;
inline at::Tensor floats_of_kind(at::IntArrayRef sizes, int kind, Random& random) {
  const at::Tensor tensor = at::empty(sizes, at::TensorOptions().dtype(at::kFloat));
  auto* values = static_cast<float*>(tensor.mutable_data_ptr());
  constexpr TrialNumbers kTrials[] = {TrialNumbers::kPlain, TrialNumbers::kWide, TrialNumbers::kTiny,
                                      TrialNumbers::kSpecial, TrialNumbers::kNan};
  if (kind < 5) {
    fill_with_trial_numbers(values, tensor.numel(), kTrials[kind], random.bits());
    return tensor;
  }
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    const uint64_t bits = random.bits();
    const uint32_t denormal = static_cast<uint32_t>(bits >> 32) & 0x807FFFFF;
    switch (kind) {
      case 5: values[i] = static_cast<float>(static_cast<int>(bits % 3) - 1); break;  // ties
      case 6: values[i] = bits % 2 == 0 ? 0.0F : -0.0F; break;
      case 7: std::memcpy(values + i, &denormal, sizeof(float)); break;
      default: values[i] = std::ldexp(bits % 2 == 0 ? 1.7F : -1.3F, static_cast<int>(bits >> 32 & 0xFF) - 127);
    }
  }
  return tensor;
}

// The instructions of a program, as passes see them.
class Calls {
 public:
  std::vector<OpCall> calls;

  // What an out variant writes comes last in its arguments, too.
  void add(const char* name, const char* overload, std::vector<c10::IValue> arguments,
           const std::vector<at::Tensor>& results = {}, std::size_t segment = 0) {
    if (*overload != '\0') arguments.insert(arguments.end(), results.begin(), results.end());
    calls.push_back(
        {c10::Dispatcher::singleton().findSchemaOrThrow(name, overload), std::move(arguments), segment, results});
  }

  BitexactKernels kernels(FindKernels& find) const {
    BitexactKernels kernels;
    kernels.of_call.resize(calls.size());
    kernels.may_be_slow = true;  // how busy the machine is decides nothing
    find(calls, kernels);
    return kernels;
  }
  // Which of the calls a pass takes over.
  std::vector<bool> taken(FindKernels& find) const {
    std::vector<bool> result;
    for (const BitexactKernel& kernel : kernels(find).of_call) result.push_back(kernel.run != nullptr);
    return result;
  }

  // Runs them by duet's kernels, where there are some, and by ATen's in memory of their own. What differs afterwards:
  // the first call that has such a tensor, or the random numbers that come next; empty: nothing. `taken` gets how many
  // calls have a kernel.
  std::string difference(int64_t& taken) const {
    const TrialGuard guard;
    const Calls theirs = copy();
    const BitexactKernels kernels = find_bitexact_kernels(calls, bitexact_passes(), {.may_be_slow = true});
    for (const auto& scratch : kernels.scratch) {
      scratch.storage.unsafeGetStorageImpl()->set_data_ptr_noswap(
          c10::GetAllocator(c10::kCPU)->allocate(scratch.storage.nbytes()));
    }
    const StateDict random = random_state();
    for (std::size_t i = 0; i < calls.size(); ++i) {
      taken += kernels.of_call[i].run ? 1 : 0;
      kernels.of_call[i].run ? kernels.of_call[i].run() : calls[i].run_as_aten();
    }
    const at::Tensor drawn = random_state().tensor("cpu");
    set_random_state(random);
    for (const OpCall& call : theirs.calls) call.run_as_aten();
    for (std::size_t i = 0; i < calls.size(); ++i) {
      const std::vector<at::Tensor> ours = tensors_of(calls[i]), expected = tensors_of(theirs.calls[i]);
      for (std::size_t k = 0; k < ours.size(); ++k) {
        const bool is_workspace = ours[k].scalar_type() == at::kByte;  // which only the op's backward reads
        if (!is_workspace && !same_bits(ours[k], expected[k])) return calls[i].op.schema().name();
      }
    }
    return same_bits(drawn, random_state().tensor("cpu")) ? "" : "random numbers";
  }

 private:
  static std::vector<at::Tensor> tensors_of(const OpCall& call) {
    std::vector<at::Tensor> tensors;
    for (const c10::IValue& argument : call.arguments) {
      for_each_tensor(argument, [&](const at::Tensor& tensor) { tensors.push_back(tensor); });
    }
    for (const at::Tensor& result : call.results) {
      if (result.defined()) tensors.push_back(result);
    }
    return tensors;
  }

  // Tensors that share memory share it in the copy.
  Calls copy() const {
    std::map<const c10::StorageImpl*, at::Tensor> memory;
    const auto copied = [&](const at::Tensor& tensor) {
      if (!tensor.defined()) return tensor;
      const c10::Storage& storage = tensor.storage();
      at::Tensor& bytes = memory[storage.unsafeGetStorageImpl()];
      if (!bytes.defined()) {
        bytes = at::empty({static_cast<int64_t>(storage.nbytes())}, at::kByte);
        if (storage.nbytes() > 0) std::memcpy(bytes.mutable_data_ptr(), storage.data(), storage.nbytes());
      }
      return at::empty({0}, tensor.options())
          .set_(bytes.storage(), tensor.storage_offset(), tensor.sizes(), tensor.strides());
    };
    Calls copy = *this;
    for (OpCall& call : copy.calls) {
      for (c10::IValue& argument : call.arguments) {
        if (argument.isTensor()) argument = copied(argument.toTensor());
        if (!argument.isTensorList()) continue;
        std::vector<at::Tensor> list = argument.toTensorVector();
        for (at::Tensor& item : list) item = copied(item);
        argument = list;
      }
      for (at::Tensor& result : call.results) result = copied(result);
    }
    return copy;
  }
};

}  // namespace duet::testing
