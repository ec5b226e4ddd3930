#include "graph/kernels/bitexact_gemm.h"
#include <algorithm>
#include <chrono>
#include <iterator>
#include <map>
#include <mutex>
#include <vector>
#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include "base/detail/bits.h"
#include "base/log.h"
#include "graph/kernels/bitexact_kernel.h"
#include "graph/kernels/trial_data.h"

namespace duet {

namespace {

bool is_row(const at::Tensor& bias, int64_t columns) {
  if (!bias.defined()) return true;
  const bool one = bias.dim() == 1 || (bias.dim() == 2 && (bias.size(0) == 1 || bias.stride(0) == 0));
  return one && bias.size(-1) == columns && (columns == 1 || bias.stride(-1) == 1);
}

}  // namespace

bool can_address(const GemmTensors& t) {
  if (t.a.dim() != 2 || t.b.dim() != 2 || t.out.dim() != 2 || t.a.numel() == 0 || t.b.numel() == 0) return false;
  const bool shapes = t.a.size(1) == t.b.size(0) && t.out.size(0) == t.a.size(0) && t.out.size(1) == t.b.size(1);
  const bool strides =
      t.out.stride(1) == 1 && t.out.stride(0) >= t.out.size(1) && (t.b.stride(0) == 1 || t.b.stride(1) == 1);
  const bool apart = !t.out.is_alias_of(t.a) && !t.out.is_alias_of(t.b) &&
                     !(t.before.defined() && t.out.is_alias_of(t.before)) &&
                     !(t.after.defined() && t.out.is_alias_of(t.after));
  return shapes && strides && apart && is_row(t.before, t.out.size(1)) && is_row(t.after, t.out.size(1));
}

GemmRunner::GemmRunner(GemmKernel kernel, const GemmTensors& t, int64_t k_block) : kernel_(kernel) {
  gemm_.m = t.a.size(0), gemm_.n = t.b.size(1), gemm_.k = t.a.size(1);
  gemm_.a_row = t.a.stride(0), gemm_.a_column = t.a.stride(1);
  gemm_.b_row = t.b.stride(0), gemm_.b_column = t.b.stride(1);
  gemm_.c_row = t.out.stride(0);
  gemm_.k_block = k_block;
  constexpr int64_t kWorthAThread = 1 << 18;  // multiplications: some microseconds
  const int64_t work = gemm_.m * gemm_.n * gemm_.k / kWorthAThread;
  const int64_t threads = std::clamp<int64_t>(work, 1, at::get_num_threads());
  // Parts of whole panels if there are enough; rows otherwise, and then each part transposes b for itself.
  const int64_t panels = (gemm_.n + kPanelColumns - 1) / kPanelColumns;
  (panels % threads == 0 || panels >= 4 * threads ? column_parts_ : row_parts_) = threads;
  if (gemm_.b_column == 1) return;
  scratch_floats_ = k_block * kPanelColumns;
  scratch_ = at::empty({threads * scratch_floats_}, at::TensorOptions().dtype(at::kFloat));
}

GemmPart GemmRunner::part(int64_t index) const {
  const int64_t row = index / column_parts_;
  const int64_t column = index % column_parts_;
  const int64_t panels = (gemm_.n + kPanelColumns - 1) / kPanelColumns;
  return {gemm_.m * row / row_parts_, gemm_.m * (row + 1) / row_parts_, panels * column / column_parts_ * kPanelColumns,
          std::min(gemm_.n, panels * (column + 1) / column_parts_ * kPanelColumns)};
}

void GemmRunner::run(const GemmTensors& tensors) const {
  const auto floats = [](const at::Tensor& tensor) {
    return tensor.defined() ? static_cast<const float*>(tensor.const_data_ptr()) : nullptr;
  };
  Gemm gemm = gemm_;
  gemm.a = floats(tensors.a), gemm.b = floats(tensors.b);
  gemm.before = floats(tensors.before), gemm.after = floats(tensors.after);
  gemm.c = static_cast<float*>(tensors.out.mutable_data_ptr());
  float* scratch = scratch_.defined() ? static_cast<float*>(scratch_.mutable_data_ptr()) : nullptr;
  run_tasks(row_parts_ * column_parts_, [&](int64_t i) { kernel_(gemm, part(i), scratch + i * scratch_floats_); });
}

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
  uint64_t seed = 5 * round;
  const auto trial = [&](const at::Tensor& tensor) {
    ++seed;
    return tensor.defined() ? trial_tensor(tensor, numbers, seed) : tensor;
  };
  const GemmTensors theirs{trial(like.a), trial(like.b), trial(like.out), trial(like.before), trial(like.after)};
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

namespace {

bool is_one(const c10::IValue& value) {
  return value.isInt() ? value.toInt() == 1 : value.isDouble() && value.toDouble() == 1;
}

// mm(a, b, out), or addmm(bias, a, b, beta = 1, alpha = 1, out); undefined tensors for anything else.
GemmTensors gemm_of(const OpCall& call) {
  if (call.is("aten::mm", "out")) return {call.floats(0), call.floats(1), call.floats(2), {}, {}};
  if (!call.is("aten::addmm", "out") || !is_one(call.arguments[3]) || !is_one(call.arguments[4])) return {};
  GemmTensors tensors{call.floats(1), call.floats(2), call.floats(5), call.floats(0), {}};
  return tensors.before.defined() ? tensors : GemmTensors();
}

// The row that the call adds to all of `out`, if it does nothing else: add_(view of out, bias, alpha = 1).
at::Tensor bias_added_to(const at::Tensor& out, const OpCall& call) {
  if (!call.is("aten::add_", "Tensor") || !is_one(call.arguments[2])) return {};
  const at::Tensor target = call.floats(0);
  const at::Tensor bias = call.floats(1);
  if (!target.defined() || !bias.defined() || bias.dim() != 1) return {};
  const bool whole = target.is_alias_of(out) && target.numel() == out.numel() && out.is_contiguous() &&
                     target.is_contiguous() && target.storage_offset() == out.storage_offset() &&
                     target.size(-1) == out.size(1);
  return whole && !bias.is_alias_of(out) ? bias : at::Tensor();
}

}  // namespace

void find_bitexact_gemms(const std::vector<OpCall>& calls, BitexactKernels& kernels) {
  const GemmKernel kernel = fast_gemm_kernel();
  for (std::size_t i = 0; kernel != nullptr && i < calls.size(); ++i) {
    GemmTensors tensors = gemm_of(calls[i]);
    if (!tensors.a.defined() || !tensors.b.defined() || !tensors.out.defined() || !can_address(tensors)) continue;
    const bool has_next = i + 1 < calls.size() && calls[i + 1].segment == calls[i].segment && !tensors.before.defined();
    if (has_next) tensors.after = bias_added_to(tensors.out, calls[i + 1]);
    if (!can_address(tensors)) tensors.after = at::Tensor();
    const int64_t k_block = bitexact_k_block(tensors, kernel);
    if (k_block == 0) continue;
    const GemmRunner runner(kernel, tensors, k_block);
    kernels.bytes += runner.bytes();
    const bool adds_bias = tensors.after.defined();
    kernels.of_call[i] = {[runner, tensors] { runner.run(tensors); },
                          adds_bias ? "bit-exact gemm, adds the bias" : "bit-exact gemm"};
    if (adds_bias) kernels.of_call[i + 1] = {[] {}, "done above"};
  }
}

}  // namespace duet
