#include "graph/kernels/bitexact_gemm_trial.h"
#include <algorithm>
#include <chrono>
#include <iterator>
#include <map>
#include <mutex>
#include <vector>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include "base/detail/bits.h"
#include "base/log.h"
#include "graph/kernels/kernel_settings.h"
#include "graph/kernels/trial_data.h"

namespace duet {

namespace {

void compute_as_aten(const GemmTensors& t) {
  at::Tensor out = t.out;
  if (t.before.defined()) {
    at::addmm_out(out, t.before, t.a, t.b);
  } else {
    at::mm_out(out, t.a, t.b);
  }
  if (t.after.defined()) out.add_(t.after);
}

GemmTensors trial_tensors(const GemmTensors& like, TrialNumbers numbers, uint64_t round) {
  uint64_t seed = 5 * round;
  const auto trial = [&](const at::Tensor& tensor) {
    ++seed;
    return tensor.defined() ? trial_tensor(tensor, numbers, seed) : tensor;
  };
  return {trial(like.a), trial(like.b), trial(like.out), trial(like.before), trial(like.after)};
}

// The same gemm on the same numbers, with memory of its own for the result.
struct Trial {
  GemmTensors theirs, ours;
};

// Some CPUs take a hundred times as long where results are denormal: some rows tell as much as all.
void zero_most_rows(const at::Tensor& a) {
  constexpr int64_t kRowsKept = 16;
  const int64_t step = a.size(0) / kRowsKept;
  if (step < 2 || a.stride(0) == 0 || a.stride(1) == 0) return;  // rows of an expanded matrix are one
  const at::Tensor kept = a.slice(0, 0, a.size(0), step).clone();
  a.zero_();
  a.slice(0, 0, a.size(0), step).copy_(kept);
}

Trial make_trial(const GemmTensors& like, TrialNumbers numbers, uint64_t round) {
  const GemmTensors theirs = trial_tensors(like, numbers, round);
  if (numbers == TrialNumbers::kTiny) zero_most_rows(theirs.a);
  GemmTensors ours = theirs;
  ours.out = trial_tensor(like.out, numbers, round);
  return {theirs, ours};
}

// A single sum may come out the same in another order: small ones are compared on several sets of numbers.
bool gives_the_bits(const GemmTensors& like, GemmKernel kernel, int64_t k_block, TrialNumbers numbers) {
  constexpr int64_t kFewestSums = 64;
  const GemmRunner runner(kernel, like, k_block);
  // One round of plain numbers is behind us.
  const uint64_t first = numbers == TrialNumbers::kPlain ? 1 : 0;
  int64_t compared = first != 0 ? like.out.numel() : 0;
  for (uint64_t round = first; compared < kFewestSums; ++round, compared += like.out.numel()) {
    const Trial trial = make_trial(like, numbers, round);
    compute_as_aten(trial.theirs);
    runner.run(trial.ours);
    if (!same_bits(trial.theirs.out, trial.ours.out)) return false;
  }
  return true;
}

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

// Those blocks of k with which the kernel is faster and gives the bits of one gemm of plain numbers.
std::vector<int64_t> promising_k_blocks(const GemmTensors& tensors, GemmKernel kernel) {
  const Trial trial = make_trial(tensors, TrialNumbers::kPlain, 0);
  const double aten_time = time_of([&] { compute_as_aten(trial.theirs); });
  const GemmTensors theirs = corner_of(trial.theirs);
  const GemmTensors ours = corner_of(trial.ours);
  std::vector<int64_t> blocks;
  for (const int64_t k_block : possible_k_blocks(tensors.a.size(1))) {
    GemmRunner(kernel, ours, k_block).run(ours);
    if (!same_bits(theirs.out, ours.out)) continue;
    const GemmRunner runner(kernel, trial.ours, k_block);
    const bool faster = time_of([&] { runner.run(trial.ours); }) < aten_time;
    if (faster && same_bits(trial.theirs.out, trial.ours.out)) blocks.push_back(k_block);
  }
  return blocks;
}

// The cheapest comparison first: a big gemm takes long, and a program has many.
int64_t find_k_block(const GemmTensors& tensors, GemmKernel kernel) {
  for (const int64_t k_block : promising_k_blocks(tensors, kernel)) {
    const auto same = [&](TrialNumbers numbers) { return gives_the_bits(tensors, kernel, k_block, numbers); };
    if (std::all_of(std::begin(kAllTrialNumbers), std::end(kAllTrialNumbers), same)) return k_block;
  }
  return 0;
}

// A trial that cannot have the memory it needs is one without a kernel; one that takes long says why.
int64_t find_k_block_and_log(const GemmTensors& tensors, GemmKernel kernel) {
  constexpr double kLong = 2.0;  // seconds
  const auto start = std::chrono::steady_clock::now();
  int64_t k_block = 0;
  try {
    k_block = find_k_block(tensors, kernel);
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
  return k_block;
}

// What the result of a trial depends on.
std::vector<int64_t> trial_key(const GemmTensors& tensors) {
  const KernelSettings settings = kernel_settings();
  std::vector<int64_t> key = {settings.threads, settings.precision, settings.flushes_denormals};
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

}  // namespace

int64_t bitexact_k_block(const GemmTensors& tensors, GemmKernel kernel) {
  static std::mutex mutex;
  static std::map<std::pair<std::vector<int64_t>, GemmKernel>, int64_t> known;
  const std::lock_guard lock(mutex);
  const auto [found, is_new] = known.try_emplace({trial_key(tensors), kernel}, 0);
  if (is_new) {
    const at::NoGradGuard no_grad;
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    found->second = find_k_block_and_log(tensors, kernel);
  }
  return found->second;
}

}  // namespace duet
