#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>
#include <ATen/Parallel.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include "base/detail/bits.h"
#include "graph/kernels/bitexact_gemm.h"
#include "graph/kernels/gemm_probes.h"

namespace duet {

void compute_as_aten(const GemmTensors& t) {
  at::Tensor out = t.out;
  if (t.before.defined()) {
    at::addmm_out(out, t.before, t.a, t.b);
  } else {
    at::mm_out(out, t.a, t.b);
  }
  if (t.after.defined()) out.add_(t.after);
}

GemmTensors trial_copies(const GemmTensors& like, TrialNumbers numbers) {
  uint64_t seed = 0;
  const auto copy = [&](const at::Tensor& tensor) {
    return tensor.defined() ? trial_tensor(tensor, numbers, ++seed) : tensor;
  };
  return {copy(like.a), copy(like.b), copy(like.out), copy(like.before), copy(like.after)};
}

bool gives_the_bits_of(const at::Tensor& expected, const GemmRunner& runner, const GemmTensors& tensors) {
  const bool all_numbers = runner.run(tensors);
  bool any_nan = false;
  for (int64_t i = 0; i < expected.size(0); ++i) {
    const float* a = static_cast<const float*>(expected.const_data_ptr()) + i * expected.stride(0);
    const float* b = static_cast<const float*>(tensors.out.const_data_ptr()) + i * tensors.out.stride(0);
    for (int64_t j = 0; j < expected.size(1); ++j) {
      const bool is_nan = std::isnan(a[j]);
      any_nan = any_nan || is_nan;
      if (is_nan ? !std::isnan(b[j]) : std::bit_cast<uint32_t>(a[j]) != std::bit_cast<uint32_t>(b[j])) return false;
    }
  }
  return all_numbers != any_nan;
}

namespace {

// The same gemm in memory of its own, twice over the same numbers.
class ProofRun {
 public:
  ProofRun(const GemmTensors& like, GemmKernel kernel, const GemmOrder& order)
      : theirs_(trial_copies(like)), ours_(theirs_), order_(order), runner_(kernel, like, order) {
    ours_.out = trial_tensor(like.out, TrialNumbers::kPlain, 1);
  }

  bool has_the_order() {
    const SumShape shape{theirs_.a.size(1), order_.k_block, theirs_.before.defined()};
    const std::vector<GemmProbes> groups = gemm_probes(shape);
    // The rows of `a` have the lines, or the columns of `b` where the rows of `a` are one number.
    const bool in_a = shape.k == 1 || theirs_.a.stride(1) != 0;
    if (groups.empty() || (!in_a && theirs_.b.stride(0) == 0)) return false;
    return std::all_of(groups.begin(), groups.end(),
                       [&](const GemmProbes& probes) { return give_what_is_expected(probes, shape, in_a); });
  }

  bool gives_the_bits_on_special_numbers() {
    uint64_t seed = 40;
    for (const at::Tensor& tensor : {theirs_.a, theirs_.b, theirs_.before, theirs_.after}) {
      if (tensor.defined()) fill_memory(tensor, TrialNumbers::kSpecial, ++seed);
    }
    return give_the_same();
  }

 private:
  static void fill(const at::Tensor& tensor, float value) {
    if (tensor.defined()) fill_memory(tensor, value);
  }

  bool give_the_same() {
    compute_as_aten(theirs_);
    return gives_the_bits_of(theirs_.out, runner_, ours_);
  }

  bool give_what_is_expected(const GemmProbes& probes, const SumShape& shape, bool in_a) {
    const at::Tensor lines_of = in_a ? theirs_.a : theirs_.b.t();
    fill(in_a ? theirs_.b : theirs_.a, probes.other);
    fill(theirs_.before, probes.before);
    fill(theirs_.after, -0.0F);
    const auto count = static_cast<int64_t>(probes.lines.size());
    const int64_t positions = lines_of.stride(0) == 0 ? 1 : lines_of.size(0);
    const int64_t rounds = rounds_for(count, positions);
    const int64_t step = (count + rounds - 1) / rounds;
    std::vector<float> expected;
    for (const auto& line : probes.lines) expected.push_back(expected_sum(probes, line, shape, order_));
    for (int64_t round = 0; round < rounds; ++round) {
      const auto probe_at = [&](int64_t position) {
        return static_cast<std::size_t>((position % positions + round * step) % count);
      };
      for (int64_t i = 0; i < positions; ++i) write(probes.lines[probe_at(i)], lines_of, i);
      if (round == 0 && !give_the_same()) return false;
      if (round > 0) compute_as_aten(theirs_);
      if (!results_are([&](int64_t i) { return expected[probe_at(i)]; }, in_a)) return false;
    }
    return true;
  }

  // Each element gets all probes where that costs little; otherwise some, with all of them in each neighbourhood.
  int64_t rounds_for(int64_t probes, int64_t positions) const {
    constexpr int64_t kMultiplications = int64_t{1} << 28;
    constexpr int64_t kFewest = 2;
    const int64_t affordable = kMultiplications / (theirs_.out.numel() * theirs_.a.size(1));
    return std::min(probes, std::max({affordable, kFewest, (probes + positions - 1) / positions}));
  }

  static void write(const std::vector<float>& line, const at::Tensor& lines, int64_t position) {
    float* to = static_cast<float*>(lines.mutable_data_ptr()) + position * lines.stride(0);
    const int64_t step = lines.stride(1);
    for (std::size_t i = 0; i < line.size(); ++i) to[static_cast<int64_t>(i) * step] = line[i];
  }

  template <class Expected>
  bool results_are(Expected expected, bool in_rows) const {
    const auto* out = static_cast<const float*>(theirs_.out.const_data_ptr());
    const int64_t columns = theirs_.out.size(1);
    std::vector<uint32_t> row(static_cast<std::size_t>(columns));
    for (int64_t i = 0; i < theirs_.out.size(0); ++i, out += theirs_.out.stride(0)) {
      for (int64_t j = 0; j < columns && (i == 0 || in_rows); ++j) {
        row[j] = std::bit_cast<uint32_t>(expected(in_rows ? i : j));
      }
      const auto differs = [](float value, uint32_t bits) { return std::bit_cast<uint32_t>(value) != bits; };
      for (int64_t j = 0; j < columns; ++j) {
        if (differs(out[j], row[j])) return false;
      }
    }
    return true;
  }

  GemmTensors theirs_, ours_;
  GemmOrder order_;
  GemmRunner runner_;
};

}  // namespace

GemmOrder likely_order(const GemmTensors& like, int64_t k_block) {
  const GemmTensors trial = trial_copies(like);
  fill_memory(trial.a, -0x1p-100F);
  fill_memory(trial.b, 0x1p-100F);
  if (trial.after.defined()) fill_memory(trial.after, -0.0F);
  compute_as_aten(trial);
  const bool from_zero = !std::signbit(*static_cast<const float*>(trial.out.const_data_ptr()));
  return {k_block, from_zero};
}

bool order_is_proved(const GemmTensors& like, GemmKernel kernel, const GemmOrder& order) {
  ProofRun run(like, kernel, order);
  return run.has_the_order() && run.gives_the_bits_on_special_numbers();
}

}  // namespace duet
