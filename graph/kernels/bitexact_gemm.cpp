#include "graph/kernels/bitexact_gemm.h"
#include <algorithm>
#include <atomic>
#include <string>
#include <utility>
#include <vector>
#include <ATen/Parallel.h>
#include "base/detail/bits.h"
#include "graph/kernels/bitexact_kernel.h"
#include "graph/kernels/cpu_kernels.h"
#include "graph/kernels/kernel_tensors.h"

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

GemmRunner::GemmRunner(GemmKernel kernel, const GemmTensors& t, const GemmOrder& order) : kernel_(kernel) {
  gemm_.m = t.a.size(0), gemm_.n = t.b.size(1), gemm_.k = t.a.size(1);
  gemm_.a_row = t.a.stride(0), gemm_.a_column = t.a.stride(1);
  gemm_.b_row = t.b.stride(0), gemm_.b_column = t.b.stride(1);
  gemm_.c_row = t.out.stride(0);
  gemm_.order = order;
  constexpr int64_t kWorthAThread = 1 << 18;  // multiplications: some microseconds
  const int64_t work = gemm_.m * gemm_.n * gemm_.k / kWorthAThread;
  const int64_t threads = std::clamp<int64_t>(work, 1, at::get_num_threads());
  // Parts of whole panels if there are enough; rows otherwise, and then each part transposes b for itself.
  const int64_t panels = (gemm_.n + kPanelColumns - 1) / kPanelColumns;
  (panels % threads == 0 || panels >= 4 * threads ? column_parts_ : row_parts_) = threads;
}

GemmPart GemmRunner::part(int64_t index) const {
  const int64_t row = index / column_parts_;
  const int64_t column = index % column_parts_;
  const int64_t panels = (gemm_.n + kPanelColumns - 1) / kPanelColumns;
  return {gemm_.m * row / row_parts_, gemm_.m * (row + 1) / row_parts_, panels * column / column_parts_ * kPanelColumns,
          std::min(gemm_.n, panels * (column + 1) / column_parts_ * kPanelColumns)};
}

bool GemmRunner::run(const GemmTensors& tensors) const {
  Gemm gemm = gemm_;
  gemm.a = floats_of(tensors.a), gemm.b = floats_of(tensors.b);
  gemm.before = floats_of(tensors.before), gemm.after = floats_of(tensors.after);
  gemm.c = writable_floats_of(tensors.out);
  const int64_t parts = row_parts_ * column_parts_, floats = kChunkFloats + gemm.order.k_block * kPanelColumns;
  float* scratch = scratch_memory(parts * floats);
  std::atomic<bool> numbers = true;
  run_tasks(parts, [&](int64_t i) {
    if (!kernel_(gemm, part(i), scratch + i * floats)) numbers = false;
  });
  return numbers;
}

GemmTensors gemm_of(const OpCall& call) {
  if (call.is("aten::mm", "out")) return {call.floats(0), call.floats(1), call.floats(2), {}, {}};
  if (!call.is("aten::addmm", "out") || !call.is_one(3) || !call.is_one(4)) return {};
  GemmTensors tensors{call.floats(1), call.floats(2), call.floats(5), call.floats(0), {}};
  return tensors.before.defined() ? tensors : GemmTensors();
}

namespace {

// Its upper left part: so many elements of the result at most.
GemmTensors corner_of(const GemmTensors& t, int64_t rows, int64_t columns) {
  rows = std::min(rows, t.out.size(0)), columns = std::min(columns, t.out.size(1));
  const auto of_row = [&](at::Tensor bias) {
    if (!bias.defined()) return bias;
    if (bias.dim() == 2) bias = bias.narrow(0, 0, std::min(rows, bias.size(0)));
    return bias.narrow(-1, 0, columns);
  };
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

// Whether it is worth a proof, which takes some thirty runs. Level is enough: the matrices of a large step are in no
// cache, which slows BLAS down more. Timed on a part, since the whole may take seconds.
bool is_fast_enough(const GemmTensors& gemm, GemmKernel kernel, const GemmOrder& order) {
  constexpr int64_t kSide = 512;
  const int64_t all = kSide * at::get_num_threads();  // which share it as they share the whole
  const GemmTensors part = corner_of(gemm, gemm.out.size(1) > all ? kSide : all, all);
  const GemmRunner runner(kernel, part, order);
  constexpr double kLevel = 1.05;
  return time_ratio([&] { runner.run(part); }, [&] { compute_as_aten(part); }) < kLevel;
}

// Which order a gemm has is guessed where the guess is cheap to refute, on plain numbers, and then proved.
GemmOrder find_order(const GemmTensors& tensors, GemmKernel kernel) {
  const TrialGuard guard;
  const GemmTensors theirs = trial_copies(tensors);
  constexpr int64_t kUsualBlock = 256;
  if (!is_fast_enough(theirs, kernel, {.k_block = std::min(theirs.a.size(1), kUsualBlock)})) return {};
  GemmTensors ours = theirs;
  ours.out = trial_tensor(tensors.out, TrialNumbers::kPlain, 0);
  compute_as_aten(theirs);
  const auto corner_of_result = [](const GemmTensors& t) { return corner_of(t, 12, kPanelColumns); };
  const GemmTensors corner = corner_of_result(ours);
  for (const int64_t k_block : possible_k_blocks(tensors.a.size(1))) {
    GemmRunner(kernel, corner, {.k_block = k_block}).run(corner);
    if (!same_bits(corner_of_result(theirs).out, corner.out)) continue;
    const GemmOrder order = likely_order(tensors, k_block);
    GemmRunner(kernel, ours, order).run(ours);
    const bool is_likely = same_bits(theirs.out, ours.out) && is_fast_enough(ours, kernel, order);
    if (is_likely && order_is_proved(tensors, kernel, order)) return order;
  }
  return {};
}

}  // namespace

GemmOrder bitexact_gemm_order(const GemmTensors& tensors, GemmKernel kernel, BitexactKernels& kernels) {
  static Trials<std::pair<std::string, GemmKernel>, GemmOrder> trials;
  // Each thread has a mode of its own: which of them computes an element would decide about its denormals.
  const KernelSettings settings = kernel_settings();
  if (settings.flushes_denormals && settings.threads > 1) return {};
  const std::string key = trial_key({tensors.a, tensors.b, tensors.out, tensors.before, tensors.after});
  return trials.of({key, kernel}, kernels, [&] { return find_order(tensors, kernel); });
}

namespace {

// The row that the call adds to all of `out`, if it does nothing else: add_(view of out, bias, alpha = 1).
at::Tensor bias_added_to(const at::Tensor& out, const OpCall& call) {
  if (!call.is("aten::add_", "Tensor") || !call.is_one(2)) return {};
  const at::Tensor target = call.floats(0);
  const at::Tensor bias = call.floats(1);
  if (!target.defined() || !bias.defined() || bias.dim() != 1) return {};
  const bool whole = target.is_alias_of(out) && target.numel() == out.numel() && out.is_contiguous() &&
                     target.is_contiguous() && target.storage_offset() == out.storage_offset() &&
                     target.size(-1) == out.size(1);
  return whole && !bias.is_alias_of(out) ? bias : at::Tensor();
}

}  // namespace

// mm and addmm (with the bias that follows), for shapes in which duet's kernel gives the bits of this LibTorch's BLAS
// and is fast enough.
void find_bitexact_gemms(const std::vector<OpCall>& calls, BitexactKernels& kernels) {
  const GemmKernel kernel = cpu_kernels().gemm;
  for (std::size_t i = 0; kernel != nullptr && i < calls.size(); ++i) {
    GemmTensors tensors = gemm_of(calls[i]);
    if (!tensors.a.defined() || !tensors.b.defined() || !tensors.out.defined() || !can_address(tensors)) continue;
    const bool has_next = i + 1 < calls.size() && calls[i + 1].segment == calls[i].segment && !tensors.before.defined();
    if (has_next) tensors.after = bias_added_to(tensors.out, calls[i + 1]);
    if (!can_address(tensors)) tensors.after = at::Tensor();
    const GemmOrder order = bitexact_gemm_order(tensors, kernel, kernels);
    if (order.k_block == 0) continue;
    const GemmRunner runner(kernel, tensors, order);
    const bool adds_bias = tensors.after.defined();
    const auto first = static_cast<std::ptrdiff_t>(i);
    const auto as_aten = [calls = std::vector(calls.begin() + first, calls.begin() + first + (adds_bias ? 2 : 1))] {
      for (const OpCall& call : calls) call.run_as_aten();
    };
    kernels.of_call[i] = {[runner, tensors, as_aten] {
                            if (!runner.run(tensors)) as_aten();
                          },
                          adds_bias ? "bit-exact gemm, adds the bias" : "bit-exact gemm", first};
    if (adds_bias) kernels.of_call[i + 1] = {[] {}, "done above", first};
  }
}

}  // namespace duet
