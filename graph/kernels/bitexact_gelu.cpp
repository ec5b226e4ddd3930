#include <algorithm>
#include <string>
#include <utility>
#include <vector>
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include "base/detail/bits.h"
#include "graph/kernels/bitexact_kernel.h"
#include "graph/kernels/cpu_kernels.h"
#include "graph/kernels/kernel_tensors.h"
#include "graph/kernels/trial_data.h"
#include "graph/replay/arena.h"

namespace duet {

namespace {

constexpr int64_t kGrain = 32768;  // elements that ATen gives one thread at least, unless an op says otherwise

template <class Range>
void for_each_range(int64_t count, int64_t grain, Range range) {
  const int64_t length = length_of_ranges(count, grain);
  if (length == count) return range(0, count);
  run_tasks((count + length - 1) / length, [&](int64_t i) { range(i * length, std::min(count, (i + 1) * length)); });
}

int64_t forward_grain(int64_t count) {
  constexpr int64_t kFewestForThreads = 16384;
  return count > kFewestForThreads ? count / at::get_num_threads() : kGrain;
}

// Whether what is kept is backward's too: tanh of the last elements of a range is libm's, so that they must be the same
// in both. erf is computed alike in all of them.
bool may_keep(const std::string& approximate, int64_t count) {
  if (approximate == "none") return true;
  constexpr int64_t kTwoVectors = 32;  // of the widest, which end a range's whole ones
  const int64_t forward = length_of_ranges(count, forward_grain(count)), backward = length_of_ranges(count, kGrain);
  const auto ends_between_vectors = [&](int64_t length) { return length == count || length % kTwoVectors == 0; };
  return forward == backward || (ends_between_vectors(forward) && ends_between_vectors(backward));
}

// Run like ATen's: what a thread computes is a range of its own, and how the last elements of a range are rounded
// depends on where it ends.
void run_gelu_forward(const GeluKernels& kernels, const at::Tensor& x, const at::Tensor& kept, const at::Tensor& y) {
  for_each_range(x.numel(), forward_grain(x.numel()), [&](int64_t begin, int64_t end) {
    kernels.forward(floats_of(x) + begin, writable_floats_of(kept) + begin, writable_floats_of(y) + begin, end - begin);
  });
}

void run_gelu_backward(const GeluKernels& kernels, const at::Tensor& grad, const at::Tensor& x, const at::Tensor& kept,
                       const at::Tensor& grad_x) {
  for_each_range(x.numel(), kGrain, [&](int64_t begin, int64_t end) {
    kernels.backward({floats_of(grad) + begin, floats_of(x) + begin, floats_of(kept) + begin,
                      writable_floats_of(grad_x) + begin, end - begin});
  });
}

bool gives_the_bits(const GeluKernels& kernels, const char* approximate, const at::Tensor& x, const at::Tensor& grad) {
  const at::Tensor kept = at::empty_like(x), y = at::empty_like(x), grad_x = at::empty_like(x);
  run_gelu_forward(kernels, x, kept, y);
  if (!same_bits(y, at::gelu(x, approximate))) return false;
  if (!may_keep(approximate, x.numel())) return true;
  run_gelu_backward(kernels, grad, x, kept, grad_x);
  return same_bits(grad_x, at::gelu_backward(grad, x, approximate));
}

}  // namespace

bool gelu_is_bitexact(const GeluKernels& kernels, const char* approximate) {
  if (kernels.forward == nullptr || kernels.backward == nullptr) return false;
  const TrialGuard guard;
  const int64_t most = kGrain * at::get_num_threads() + 1;
  std::vector<int64_t> counts = {16384, 16385, 32768, 32769, most};
  for (int64_t count = 2; count <= 100; ++count) counts.push_back(count);
  const at::Tensor x = at::empty({most}, at::TensorOptions().dtype(at::kFloat));
  const at::Tensor grad = at::empty_like(x);
  uint64_t seed = 0;
  for (const int64_t count : counts) {
    for (const TrialNumbers numbers : kAllTrialNumbers) {
      fill_with_trial_numbers(writable_floats_of(x), count, numbers, ++seed);
      fill_with_trial_numbers(writable_floats_of(grad), count, numbers, ++seed);
      if (!gives_the_bits(kernels, approximate, x.narrow(0, 0, count), grad.narrow(0, 0, count))) return false;
    }
  }
  return true;
}

namespace {

// A single element ATen does not give to oneDNN.
bool plain(const at::Tensor& tensor) { return tensor.defined() && tensor.is_contiguous() && tensor.numel() > 1; }

bool approximates(const c10::IValue& argument, const char* approximate) {
  return argument.isString() && argument.toStringRef() == approximate;
}

// One of gelu's approximations.
struct Gelu {
  const char* approximate;
  const GeluKernels& kernels;

  // gelu.out(x, approximate, y)
  bool is_forward(const OpCall& call) const {
    return call.is("aten::gelu", "out") && approximates(call.arguments[1], approximate) && plain(call.floats(0)) &&
           plain(call.floats(2)) && call.floats(2).sizes() == call.floats(0).sizes();
  }

  // gelu_backward.grad_input(grad, x, approximate, grad_x) of this very x.
  bool is_backward(const OpCall& call, const at::Tensor& x) const {
    return call.is("aten::gelu_backward", "grad_input") && approximates(call.arguments[2], approximate) &&
           call.floats(1).is_same(x) && plain(call.floats(0)) && plain(call.floats(3)) &&
           call.floats(0).sizes() == x.sizes() && call.floats(3).sizes() == x.sizes();
  }

  // The first backward of the gelu at `forward`, while its x holds what the gelu saw; 0 if there is none.
  std::size_t backward_of(const std::vector<OpCall>& calls, std::size_t forward) const {
    const at::Tensor x = calls[forward].floats(0);
    if (calls[forward].writes(x)) return 0;
    for (std::size_t i = forward + 1; i < calls.size() && calls[i].segment == calls[forward].segment; ++i) {
      if (is_backward(calls[i], x)) return i;
      if (calls[i].writes(x)) return 0;
    }
    return 0;
  }

  // With oneDNN or without.
  bool is_bitexact(BitexactKernels& all) const {
    static Trials<std::pair<std::string, bool>, bool> trials;
    const bool onednn = at::globalContext().userEnabledMkldnn();
    return trials.of({approximate + trial_key({}), onednn}, all,
                     [&] { return gelu_is_bitexact(kernels, approximate); });
  }

  void find(const std::vector<OpCall>& calls, BitexactKernels& all) const {
    const GeluKernels& fast = kernels;
    for (std::size_t i = 0; fast.forward != nullptr && i < calls.size(); ++i) {
      if (!is_forward(calls[i]) || !is_bitexact(all)) continue;
      const at::Tensor x = calls[i].floats(0), y = calls[i].floats(2);
      const std::size_t backward = may_keep(approximate, x.numel()) ? backward_of(calls, i) : 0;
      at::Tensor kept = y;
      if (backward > 0 || y.is_alias_of(x)) {
        const c10::Storage memory = storage_without_memory(x.nbytes());
        kept = at::empty({0}, x.options()).set_(memory, 0, x.sizes(), x.strides());
        all.scratch.push_back({memory, i, std::max(i, backward)});
      }
      const auto first = static_cast<std::ptrdiff_t>(i);
      const auto run_forward = [=] { run_gelu_forward(fast, x, kept, y); };
      all.of_call[i] = {run_forward, backward > 0 ? "bit-exact gelu, keeps what both need" : "bit-exact gelu", first};
      if (backward == 0) continue;
      const at::Tensor grad = calls[backward].floats(0), grad_x = calls[backward].floats(3);
      all.of_call[backward] = {[=] { run_gelu_backward(fast, grad, x, kept, grad_x); },
                               "bit-exact gelu, takes what was kept", first, /*elementwise=*/true};
    }
  }
};

}  // namespace

// gelu, and its backward where what is costly in both is kept from the first for the second.
void find_bitexact_gelus(const std::vector<OpCall>& calls, BitexactKernels& kernels) {
  if (!threads_round_alike()) return;
  Gelu{"tanh", cpu_kernels().gelu_tanh}.find(calls, kernels);
  Gelu{"none", cpu_kernels().gelu_erf}.find(calls, kernels);
}

}  // namespace duet
