#pragma once

#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include "graph/kernels/bitexact_kernel.h"
#include "graph/kernels/trial_data.h"

// What the tests of single kernels share.

namespace duet::testing {

struct Threads {
  explicit Threads(int count) : before(at::get_num_threads()) { at::set_num_threads(count); }
  ~Threads() { at::set_num_threads(before); }
  int before;
};

inline c10::OperatorHandle op(const char* name, const char* overload) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
}

// The instructions of a program, as a pass sees them.
struct Calls {
  void add(const char* name, const char* overload, std::vector<c10::IValue> arguments, std::size_t segment = 0,
           std::vector<at::Tensor> results = {}) {
    kept.push_back(std::make_unique<std::vector<c10::IValue>>(std::move(arguments)));
    calls.push_back({op(name, overload), *kept.back(), segment, std::move(results)});
  }
  // Which of the calls a pass takes over.
  std::vector<bool> taken(void (*pass)(const std::vector<OpCall>&, BitexactKernels&)) const {
    BitexactKernels kernels;
    kernels.of_call.resize(calls.size());
    pass(calls, kernels);
    std::vector<bool> result;
    for (const BitexactKernel& kernel : kernels.of_call) result.push_back(kernel.run != nullptr);
    return result;
  }
  std::vector<std::unique_ptr<std::vector<c10::IValue>>> kept;
  std::vector<OpCall> calls;
};

// A random source that tells its seed where a test fails: SCOPED_TRACE(random.seed).
struct Random {
  uint64_t seed = std::random_device{}();
  std::mt19937_64 bits{seed};

  int64_t between(int64_t low, int64_t high) { return low + static_cast<int64_t>(bits() % (high - low + 1)); }
  bool coin() { return (bits() & 1) != 0; }
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

}  // namespace duet::testing
