#include <algorithm>
#include <cstring>
#include <functional>
#include <vector>
#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include "base/detail/bits.h"
#include "graph/kernels/bitexact_kernel.h"
#include "graph/kernels/cpu_kernels.h"
#include "graph/kernels/kernel_tensors.h"
#include "graph/kernels/strided_loops.h"
#include "graph/kernels/trial_data.h"

// Ops that copy rows or add them up: without what ATen does before, and for each row.

namespace duet {

namespace {

// A row of a table for each index.
struct Rows {
  at::Tensor table, indices, rows;
  int64_t padding = -1;

  int64_t width() const { return table.size(1); }
  const int64_t* index() const { return static_cast<const int64_t*>(indices.const_data_ptr()); }
  bool has(int64_t row) const { return row >= 0 && row < table.size(0); }

  // Where a row begins; only within one there are no gaps.
  int64_t offset_of(int64_t row) const {
    int64_t offset = 0;
    for (int64_t d = rows.dim() - 2; d >= 0; row /= rows.size(d--)) offset += row % rows.size(d) * rows.stride(d);
    return offset;
  }

  bool fits() const {
    const bool plain = is_contiguous_float(table) && table.numel() > 0 && table.dim() == 2 && is_float(rows) &&
                       rows.numel() > 0 && rows.size(-1) == width() && (rows.stride(-1) == 1 || width() == 1);
    return plain && indices.scalar_type() == at::kLong && indices.is_cpu() && indices.is_contiguous() &&
           rows.numel() == indices.numel() * width() && !rows.is_alias_of(table);
  }

  void copy() const {
    const int64_t *const begin = index(), count = indices.numel();
    // ATen has the words for an index that is not there.
    if (!std::all_of(begin, begin + count, [&](int64_t row) { return has(row); })) at::embedding(table, indices);
    for_each_part(count, rows.numel(), [&](int64_t from, int64_t to) {
      for (int64_t i = from; i < to; ++i) {
        std::memcpy(writable_floats_of(rows) + offset_of(i), floats_of(table) + begin[i] * width(),
                    sizeof(float) * static_cast<std::size_t>(width()));
      }
    });
  }

  // In the order of the indices, as ATen does it.
  void add_up(PointwiseKernel add) const {
    float* const sums = writable_floats_of(table);
    for_each_part(table.size(0), std::max(rows.numel(), table.numel()), [&](int64_t from, int64_t to) {
      std::fill(sums + from * width(), sums + to * width(), 0.0F);
      for (int64_t i = 0; i < indices.numel(); ++i) {
        const int64_t row = index()[i];
        if (row == padding || row < from || row >= to) continue;
        float* const sum = sums + row * width();
        add({.a = sum, .b = floats_of(rows) + offset_of(i), .y = sum, .count = width(), .number = 1});
      }
    });
  }
};

// Side by side along a dimension: into each part of the whole a copy.
struct Cat {
  std::vector<StridedLoops> copies;

  Cat(const std::vector<at::Tensor>& parts, const at::Tensor& whole, int64_t dim) {
    int64_t begin = 0;
    for (const at::Tensor& part : parts) {
      if (part.numel() == 0) continue;
      const bool fits = is_float(part) && part.dim() == whole.dim() && !part.is_alias_of(whole);
      copies.push_back(fits ? StridedLoops(whole.narrow(dim, begin, part.size(dim)), part, {}) : StridedLoops());
      begin += fits ? part.size(dim) : 0;
    }
  }
  bool fits() const { return std::ranges::all_of(copies, &StridedLoops::exist); }

  void copy(PointwiseKernel copy) const {
    for (const StridedLoops& loops : copies) {
      for_each_part(loops.rows(), loops.elements(),
                    [&](int64_t begin, int64_t end) { loops.run(copy, begin, end, {}); });
    }
  }
};

at::Tensor tensor_of(const OpCall& call, std::size_t argument) { return call.arguments[argument].toTensor(); }

// What does the work of an embedding, its backward or a cat; empty if the call is none.
std::function<void()> make_rows_kernel(const OpCall& call, const PointwiseKernels& kernels) {
  if (call.is("aten::embedding", "")) {
    const Rows work{call.floats(0), tensor_of(call, 1), call.result(0)};
    if (work.rows.defined() && work.table.defined() && work.fits()) return [=] { work.copy(); };
  }
  if (call.is("aten::embedding_dense_backward", "") && !call.arguments[4].toBool()) {
    const Rows work{call.result(0), tensor_of(call, 1), call.floats(0), call.arguments[3].toInt()};
    if (work.rows.defined() && work.table.defined() && work.fits())
      return [work, add = kernels.add] { work.add_up(add); };
  }
  if (call.is("aten::cat", "out")) {
    const at::Tensor whole = call.floats(2);
    if (!whole.defined()) return {};
    const Cat work(call.arguments[0].toTensorVector(), whole, call.arguments[1].toInt());
    if (work.fits()) return [work, copy = kernels.copy] { work.copy(copy); };
  }
  return {};
}

}  // namespace

// Nothing is rounded but sums of two.
bool rows_are_bitexact(const PointwiseKernels& kernels) {
  const TrialGuard guard;
  for (const TrialNumbers numbers : kTrialNumbersWithNan) {
    for (const int64_t width : {1, 3, 16, 31, 64, 133}) {
      constexpr int64_t kTable = 5, kIndices = 12;
      const at::Tensor table = trial_tensor({kTable, width}, numbers, 1), indices = at::full({kIndices}, 0, at::kLong);
      for (int64_t i = 0; i < kIndices; ++i) static_cast<int64_t*>(indices.mutable_data_ptr())[i] = i * i % kTable;
      const at::Tensor rows = trial_tensor({kIndices, width}, numbers, 2), copied = at::empty_like(rows);
      const at::Tensor sums = at::empty_like(table), whole = trial_tensor({kTable, 2 * width}, numbers, 3);
      Rows{table, indices, copied}.copy();
      Rows{sums, indices, rows, 1}.add_up(kernels.add);
      const Cat cat({table, sums}, whole, 1);
      if (cat.fits()) cat.copy(kernels.copy);
      if (!same_bits(at::embedding(table, indices), copied) ||
          (cat.fits() && !same_bits(at::cat({table, sums}, 1), whole)) ||
          !same_bits(at::embedding_dense_backward(rows, indices, kTable, 1, false), sums)) {
        return false;
      }
    }
  }
  return true;
}

void find_direct_rows(const std::vector<OpCall>& calls, BitexactKernels& kernels) {
  const PointwiseKernels& pointwise = cpu_kernels().pointwise;
  if (kernel_settings().flushes_denormals || pointwise.add == nullptr) return;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    std::function<void()> run = make_rows_kernel(calls[i], pointwise);
    if (!run) continue;
    static Trials<int, bool> trials;
    if (trials.of(0, kernels, [&] { return rows_are_bitexact(pointwise); }))
      kernels.of_call[i] = {std::move(run), "direct rows"};
  }
}

}  // namespace duet
