#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <vector>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include "base/detail/bits.h"
#include "base/log.h"
#include "graph/kernels/bitexact_gemm.h"
#include "graph/kernels/bitexact_kernel.h"
#include "graph/kernels/gemm_proof.h"
#include "graph/kernels/trial_data.h"

// Which order a gemm has is guessed where the guess is cheap to refute, on plain numbers, and proved where a kernel
// with that order is faster.

namespace duet {

namespace {

// Its upper left part: what shows a wrong order of summation at little cost, once ATen's result is there.
GemmTensors corner_of(const GemmTensors& t) {
  const int64_t rows = std::min<int64_t>(t.out.size(0), 12);
  const int64_t columns = std::min(t.out.size(1), kPanelColumns);
  const auto of_row = [&](const at::Tensor& bias) { return bias.defined() ? bias.narrow(-1, 0, columns) : bias; };
  return {t.a.narrow(0, 0, rows), t.b.narrow(1, 0, columns), t.out.narrow(0, 0, rows).narrow(1, 0, columns),
          of_row(t.before), of_row(t.after)};
}

// How BLAS libraries cut k: not at all, into blocks of a fixed size, or into two about equal ones.
std::vector<int64_t> possible_k_blocks(int64_t k) {
  constexpr int64_t kUnroll = 4;
  std::vector<int64_t> blocks = {k};
  for (const int64_t block : {(k / 2) / kUnroll * kUnroll, int64_t{192}, int64_t{128}, int64_t{256}, int64_t{320},
                              int64_t{336}, int64_t{384}, int64_t{512}}) {
    if (block > 0 && block < k) blocks.push_back(block);
  }
  return blocks;
}

// The shortest of some runs, in seconds: many of a short one, one of a long one.
template <class Work>
double time_of(Work work) {
  constexpr double kEnough = 5e-4;
  constexpr double kLong = 5e-2;
  constexpr int kFewest = 2;  // the first one finds cold caches
  constexpr int kMost = 50;
  double best = 1e9;
  double total = 0;
  for (int run = 0; run < kMost && (total < kEnough || (run < kFewest && total < kLong)); ++run) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    best = std::min(best, seconds);
    total += seconds;
  }
  return best;
}

enum class Wanted { kFaster, kAny };

// Those orders in which the kernel gives the bits of one gemm of plain numbers.
std::vector<GemmOrder> promising_orders(const GemmTensors& tensors, GemmKernel kernel, Wanted wanted) {
  const GemmTensors theirs = trial_copies(tensors);
  GemmTensors ours = theirs;
  ours.out = trial_tensor(tensors.out, TrialNumbers::kPlain, 0);
  compute_as_aten(theirs);
  const double aten_time = wanted == Wanted::kFaster ? time_of([&] { compute_as_aten(theirs); }) : 0;
  const GemmTensors corner = corner_of(ours);
  std::vector<GemmOrder> orders;
  for (const int64_t k_block : possible_k_blocks(tensors.a.size(1))) {
    GemmRunner(kernel, corner, {.k_block = k_block}).run(corner);
    if (!same_bits(corner_of(theirs).out, corner.out)) continue;
    const GemmOrder order = likely_order(tensors, k_block);
    const GemmRunner runner(kernel, ours, order);
    runner.run(ours);
    if (!same_bits(theirs.out, ours.out)) continue;
    if (wanted == Wanted::kAny || time_of([&] { runner.run(ours); }) < aten_time) orders.push_back(order);
  }
  return orders;
}

GemmOrder find_order(const GemmTensors& tensors, GemmKernel kernel, Wanted wanted) {
  for (const GemmOrder& order : promising_orders(tensors, kernel, wanted)) {
    if (order_is_proved(tensors, kernel, order)) return order;
  }
  return {};
}

// A trial that cannot have the memory it needs is one without a kernel; one that takes long says why.
GemmOrder find_order_and_log(const GemmTensors& tensors, GemmKernel kernel) {
  constexpr double kLong = 2.0;  // seconds
  const auto start = std::chrono::steady_clock::now();
  GemmOrder order;
  try {
    order = find_order(tensors, kernel, Wanted::kFaster);
  } catch (const c10::Error& error) {
    log_warning(c10::str("[GraphTrainer] no faster kernel was tried for gemms of ", tensors.a.sizes(), " and ",
                         tensors.b.sizes(), ": ", error.what_without_backtrace()));
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (seconds > kLong) {
    log_info(c10::str("[GraphTrainer] trying a faster kernel for gemms of ", tensors.a.sizes(), " and ",
                      tensors.b.sizes(), " took ", static_cast<int64_t>(seconds),
                      " s, once; graph: {fuse: off} does without"));
  }
  return order;
}

// Each thread has a mode of its own: which of them computes an element would decide about its denormals.
bool threads_may_differ(const KernelSettings& settings) { return settings.flushes_denormals && settings.threads > 1; }

}  // namespace

std::vector<int64_t> trial_key(const GemmTensors& tensors) {
  const KernelSettings settings = kernel_settings();
  std::vector<int64_t> key = {settings.threads, settings.blas_threads, settings.in_parallel, settings.precision,
                              settings.flushes_denormals};
  for (const at::Tensor& tensor : {tensors.a, tensors.b, tensors.out, tensors.before, tensors.after}) {
    if (!tensor.defined()) {
      key.push_back(-1);
      continue;
    }
    key.insert(key.end(), tensor.sizes().begin(), tensor.sizes().end());
    key.insert(key.end(), tensor.strides().begin(), tensor.strides().end());
    key.push_back(floats_past_alignment(tensor));
  }
  return key;
}

GemmOrder proved_gemm_order(const GemmTensors& tensors, GemmKernel kernel) {
  if (threads_may_differ(kernel_settings())) return {};
  const TrialGuard guard;
  return find_order(tensors, kernel, Wanted::kAny);
}

GemmOrder bitexact_gemm_order(const GemmTensors& tensors, GemmKernel kernel, BitexactKernels& kernels) {
  static Trials<std::pair<std::vector<int64_t>, GemmKernel>, GemmOrder> trials;
  if (threads_may_differ(kernel_settings())) return {};
  return trials.of({trial_key(tensors), kernel}, kernels, [&] {
    const TrialGuard guard;
    return find_order_and_log(tensors, kernel);
  });
}

}  // namespace duet
