#include "hooks/detail/histogram.h"
#include <algorithm>
#include <cmath>
#include <ATen/TensorOperators.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/view_as_real.h>

namespace duet {

namespace {

at::Tensor finite_values(const at::Tensor& tensor) {
  at::Tensor values = tensor.detach();
  if (values.is_sparse()) values = values.coalesce().values();
  if (values.is_complex()) values = at::view_as_real(values.resolve_conj());
  values = values.reshape({-1}).to(at::kDouble);
  return values.masked_select(at::isfinite(values));
}

}  // namespace

std::optional<Histogram> histogram_of(const at::Tensor& tensor, int64_t bins) {
  const at::Tensor values = finite_values(tensor);
  if (values.numel() == 0) return std::nullopt;
  const auto [smallest, largest] = at::aminmax(values);
  double low = smallest.item<double>(), high = largest.item<double>();
  if (low == high) {
    const double half = std::max(0.5, std::abs(low) * 1e-6);
    low -= half, high += half;
  }
  if (!std::isfinite(high - low)) return std::nullopt;
  const double width = (high - low) / static_cast<double>(bins);
  const at::Tensor bin = ((values - low) / width).to(at::kLong).clamp(0, bins - 1);
  const at::Tensor counts = at::bincount(bin, {}, bins).to(at::kCPU);
  Histogram histogram;
  histogram.counts.assign(counts.const_data_ptr<int64_t>(), counts.const_data_ptr<int64_t>() + bins);
  for (int64_t edge = 0; edge < bins; ++edge) histogram.edges.push_back(low + static_cast<double>(edge) * width);
  histogram.edges.push_back(high);
  histogram.sum = values.sum().item<double>();
  histogram.sum_of_squares = values.square().sum().item<double>();
  return histogram;
}

}  // namespace duet
