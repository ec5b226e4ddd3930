#include "core/detail/counted_targets.h"
#include <algorithm>
#include <ATen/ops/ne.h>
#include <ATen/ops/sum.h>
#include <c10/core/ScalarType.h>

namespace duet {

int64_t counted_targets(const at::Tensor& target, int64_t ignore_index) {
  if (!c10::isIntegralType(target.scalar_type(), /*includeBool=*/false)) return target.numel();
  // The common case, in every step: without operators, which would cost more than the count.
  if (target.is_cpu() && target.is_contiguous() && target.scalar_type() == at::kLong) {
    const auto* const first = target.const_data_ptr<int64_t>();
    return target.numel() - std::count(first, first + target.numel(), ignore_index);
  }
  return target.ne(ignore_index).sum().item<int64_t>();
}

}  // namespace duet
