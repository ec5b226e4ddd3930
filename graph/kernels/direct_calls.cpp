#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>
#include <dlfcn.h>
#include "graph/kernels/bitexact_gemm.h"
#include "graph/kernels/call_kernels.h"
#include "graph/kernels/kernel_tensors.h"

// Where tensors are small, most of the time of an op goes by before its arithmetic begins: checks, views, allocation.
// Here that part is left out.

namespace duet {

Sgemm blas_sgemm() {
  static const auto found = []() -> Sgemm {
    Dl_info atens{};
    void* const function = dlsym(RTLD_DEFAULT, "_ZN2at13globalContextEv");
    if (function == nullptr || dladdr(function, &atens) == 0 || atens.dli_fname == nullptr) return nullptr;
    void* const library = dlopen(atens.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    return library == nullptr ? nullptr : reinterpret_cast<Sgemm>(dlsym(library, "sgemm_"));
  }();
  return found;
}

namespace {

// A matrix as BLAS takes it.
struct Layout {
  char transpose = 'n';
  int stride = 1;
};

// As ATen chooses it: rows without gaps if it can, `columns` of them; else columns.
std::optional<Layout> layout_of(const at::Tensor& matrix) {
  const auto rows = std::max<int64_t>(1, matrix.size(0)), columns = std::max<int64_t>(1, matrix.size(1));
  if (matrix.stride(1) == 1 && matrix.stride(0) >= columns) return Layout{'n', static_cast<int>(matrix.stride(0))};
  if (matrix.stride(0) == 1 && matrix.stride(1) >= rows) return Layout{'t', static_cast<int>(matrix.stride(1))};
  return std::nullopt;
}

// ATen's call for out = a b, or bias + a b: of the transposed matrices, since BLAS counts by columns.
struct SmallGemm {
  Layout a, b;
  int m, n, k;

  void run(const GemmTensors& t) const {
    float* out = writable_floats_of(t.out);
    const float one = 1, start = t.before.defined() ? 1 : 0;
    const float* bias = floats_of(t.before);
    for (int row = 0; bias != nullptr && row < m; ++row) std::memcpy(out + row * n, bias, sizeof(float) * n);
    blas_sgemm()(&b.transpose, &a.transpose, &n, &m, &k, &one, floats_of(t.b), &b.stride, floats_of(t.a), &a.stride,
                 &start, out, &n);
  }
};

std::optional<SmallGemm> small_gemm_of(const GemmTensors& t) {
  constexpr int64_t kMostProducts = int64_t{1} << 16;
  if (!t.a.defined() || !t.b.defined() || !t.out.defined() || !can_address(t)) return std::nullopt;
  const bool small = t.a.numel() * t.b.size(1) <= kMostProducts;
  // A single column ATen hands on the other way round.
  if (!small || !t.out.is_contiguous() || t.out.size(1) < 2) return std::nullopt;
  const std::optional<Layout> a = layout_of(t.a), b = layout_of(t.b);
  if (!a || !b) return std::nullopt;
  return SmallGemm{*a, *b, static_cast<int>(t.a.size(0)), static_cast<int>(t.b.size(1)), static_cast<int>(t.a.size(1))};
}

CallKernel make_small_gemm(const OpCall& call) {
  const GemmTensors tensors = gemm_of(call);
  const std::optional<SmallGemm> gemm = small_gemm_of(tensors);
  if (!gemm || blas_sgemm() == nullptr) return {};
  return [gemm = *gemm, tensors] {
    gemm.run(tensors);
    return true;
  };
}

}  // namespace

// Small mm and addmm: the call is ATen's own; whether this LibTorch makes it is tried.
void find_direct_calls(const std::vector<OpCall>& calls, BitexactKernels& kernels) {
  static const std::vector<CallKernelMaker> makers = {{"aten::mm", "out", "BLAS at once", make_small_gemm},
                                                      {"aten::addmm", "out", "BLAS at once", make_small_gemm}};
  if (!kernel_settings().flushes_denormals) find_call_kernels(makers, calls, kernels);
}

}  // namespace duet
