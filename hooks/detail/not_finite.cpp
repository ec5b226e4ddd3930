#include "hooks/detail/not_finite.h"
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/view_as_real.h>
#include <c10/util/StringUtil.h>
#include "core/task.h"

namespace duet {

std::vector<WatchedTensor> watched_weights(const Task& task) {
  std::vector<WatchedTensor> watched;
  for (const auto& [name, parameter] : task.named_parameters()) {
    if (parameter.requires_grad()) watched.push_back({"weight", name, parameter});
  }
  for (const auto& [name, buffer] : task.named_buffers()) {
    watched.push_back({"buffer", name, buffer, /*may_be_infinite=*/true, /*of_this_rank=*/true});
  }
  return watched;
}

std::vector<WatchedTensor> watched_state(const Task& task, const StateDict& state) {
  constexpr std::string_view kOptimizer = "optimizer.", kHooks = "hooks.", kWeights = ".weights.";
  std::vector<WatchedTensor> watched = watched_weights(task);
  std::set<std::string> buffers;
  for (const auto& item : task.named_buffers()) buffers.insert(item.first);
  for (const auto& [name, tensor] : state.tensors()) {
    const std::size_t weights = name.starts_with(kHooks) ? name.find(kWeights) : std::string::npos;
    if (name.starts_with(kOptimizer)) {
      watched.push_back({"optimizer state", name.substr(kOptimizer.size()), tensor});
    } else if (weights != std::string::npos) {
      const bool of_buffer = buffers.contains(name.substr(weights + kWeights.size()));
      watched.push_back({"average", name.substr(kHooks.size()), tensor, of_buffer, of_buffer});
    }
  }
  return watched;
}

namespace {

// As real numbers that can be compared; undefined if there are none.
at::Tensor real_numbers(at::Tensor tensor) {
  if (!tensor.defined() || !(tensor.is_floating_point() || tensor.is_complex())) return {};
  tensor = tensor.detach();
  if (tensor.is_sparse()) tensor = tensor._values();
  if (tensor.is_complex()) tensor = at::view_as_real(tensor.resolve_conj());
  if (tensor.element_size() == 1) tensor = tensor.to(at::kFloat);
  return tensor.numel() > 0 ? tensor : at::Tensor();
}

enum class Worst { kFinite, kInfinite, kNaN };

template <class Bits>
Worst worst_by_bits(const at::Tensor& numbers, at::ScalarType type, Bits infinity) {
  constexpr int64_t kGrain = int64_t{1} << 18;
  constexpr Bits kAllButSign = std::numeric_limits<Bits>::max();
  const Bits* const bits = numbers.view(type).const_data_ptr<Bits>();
  const auto greater = [](Bits a, Bits b) { return std::max(a, b); };
  const auto greatest_of = [bits](int64_t begin, int64_t end, Bits greatest) {
    for (int64_t i = begin; i < end; ++i) greatest = std::max(greatest, static_cast<Bits>(bits[i] & kAllButSign));
    return greatest;
  };
  const Bits greatest = at::parallel_reduce(0, numbers.numel(), kGrain, Bits{0}, greatest_of, greater);
  return greatest > infinity ? Worst::kNaN : greatest == infinity ? Worst::kInfinite : Worst::kFinite;
}

// Without their signs, and as whole numbers, infinity is above all finite numbers and NaN above that. To find the
// greatest takes as long as to read the memory, half of what at::aminmax() takes: training waits for it at each save.
// Nothing where the numbers do not lie side by side on the host.
std::optional<Worst> worst_on_host(const at::Tensor& numbers) {
  if (!numbers.is_cpu() || !numbers.is_non_overlapping_and_dense()) return std::nullopt;
  switch (numbers.scalar_type()) {
    case at::kDouble:
      return worst_by_bits(numbers, at::kLong, std::bit_cast<int64_t>(std::numeric_limits<double>::infinity()));
    case at::kFloat:
      return worst_by_bits(numbers, at::kInt, std::bit_cast<int32_t>(std::numeric_limits<float>::infinity()));
    case at::kHalf: return worst_by_bits(numbers, at::kShort, int16_t{0x7C00});
    case at::kBFloat16: return worst_by_bits(numbers, at::kShort, int16_t{0x7F80});
    default: return std::nullopt;
  }
}

bool is_fine(const WatchedTensor& watched, Worst worst) {
  return watched.may_be_infinite ? worst != Worst::kNaN : worst == Worst::kFinite;
}

}  // namespace

// Elsewhere the least and the greatest number say it in one pass without a copy: a NaN is both.
std::vector<WatchedTensor> not_finite(const std::vector<WatchedTensor>& watched) {
  const at::NoGradGuard no_grad;
  std::set<std::size_t> bad;
  std::map<std::string, std::pair<std::vector<std::size_t>, std::vector<at::Tensor>>> by_device;
  for (std::size_t i = 0; i < watched.size(); ++i) {
    const at::Tensor numbers = real_numbers(watched[i].tensor);
    if (!numbers.defined()) continue;
    if (const std::optional<Worst> worst = worst_on_host(numbers)) {
      if (!is_fine(watched[i], *worst)) bad.insert(i);
      continue;
    }
    auto& [indices, ends] = by_device[numbers.device().str()];
    const auto [least, greatest] = at::aminmax(numbers);
    indices.push_back(i);
    ends.insert(ends.end(), {least, greatest});
  }
  for (const auto& item : by_device) {
    const auto& [indices, ends] = item.second;
    const at::Tensor all = at::stack(ends).to(at::kCPU, at::kDouble);
    const double* const numbers = all.const_data_ptr<double>();
    for (std::size_t i = 0; i < indices.size(); ++i) {
      const double least = numbers[2 * i], greatest = numbers[2 * i + 1];
      const bool is_infinite = std::isinf(least) || std::isinf(greatest);
      const Worst worst = std::isnan(greatest) ? Worst::kNaN : is_infinite ? Worst::kInfinite : Worst::kFinite;
      if (!is_fine(watched[indices[i]], worst)) bad.insert(indices[i]);
    }
  }
  std::vector<WatchedTensor> found;
  for (const std::size_t i : bad) found.push_back(watched[i]);
  return found;
}

std::string names_of(const std::vector<WatchedTensor>& found) {
  std::string text;
  for (std::size_t i = 0, end = 0; i < found.size(); i = end) {
    while (end < found.size() && std::string_view(found[end].kind) == found[i].kind) ++end;
    text += text.empty() ? "" : ", ";
    text += end - i == 1 ? c10::str("the ", found[i].kind, " '", found[i].name, "'")
                         : c10::str(end - i, " ", found[i].kind, "s from '", found[i].name, "' on");
  }
  return text;
}

}  // namespace duet
