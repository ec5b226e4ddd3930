#include "graph/kernels/bitexact_gemm.h"
#include <algorithm>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include "graph/kernels/kernel_threads.h"

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

}  // namespace duet
