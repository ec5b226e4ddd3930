#include "hooks/detail/value_history.h"
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

namespace duet {

double median_of(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*std::max_element(values.begin(), middle) + *middle) / 2;
}

void ValueHistory::add(const at::Tensor& value) {
  pending_.push_back(value.requires_grad() ? value.detach() : value);
  if (pending_.size() > keep_) pending_.pop_front();
}

void ValueHistory::add(double value) {
  host_.push_back(value);
  trim(keep_);
}

void ValueHistory::trim(std::size_t keep) {
  while (host_.size() > keep) host_.pop_front();
}

at::Tensor ValueHistory::unread() const {
  if (pending_.empty()) return {};
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> flat;
  for (const at::Tensor& value : pending_) {
    const bool same_type = value.scalar_type() == pending_.front().scalar_type();  // else joining them may lose digits
    flat.push_back(value.reshape({-1}).to(pending_.back().device(), same_type ? value.scalar_type() : at::kDouble));
  }
  return at::cat(flat).to(at::kDouble);
}

void ValueHistory::take(const at::Tensor& numbers) {
  const double* const first = numbers.const_data_ptr<double>();
  host_.insert(host_.end(), first, first + numbers.numel());
  pending_.clear();
}

double ValueHistory::statistic(const std::string& method, std::size_t window) const {
  if (host_.empty()) return std::nan("");
  const std::size_t count = std::clamp<std::size_t>(window, 1, host_.size());
  const auto first = host_.end() - static_cast<std::ptrdiff_t>(count);
  if (method == "current") return host_.back();
  if (std::any_of(first, host_.end(), [](double value) { return std::isnan(value); })) return std::nan("");
  if (method == "min") return *std::min_element(first, host_.end());
  if (method == "max") return *std::max_element(first, host_.end());
  if (method == "median") return median_of({first, host_.end()});
  return std::accumulate(first, host_.end(), 0.0) / static_cast<double>(count);
}

StateDict ValueHistory::state_dict() const {
  StateDict state;
  const std::size_t count = std::min(host_.size(), keep_);
  if (count > 0) {
    at::Tensor read = at::empty({static_cast<int64_t>(count)}, at::kDouble);
    std::copy(host_.end() - static_cast<std::ptrdiff_t>(count), host_.end(), read.mutable_data_ptr<double>());
    state.set("read", read);
  }
  if (!pending_.empty()) state.set("unread", unread());
  return state;
}

ValueHistory ValueHistory::from_state(const StateDict& state, std::size_t keep) {
  ValueHistory history(keep);
  for (const char* part : {"read", "unread"}) {
    if (state.has(part)) history.take(state.tensor(part).reshape({-1}).to(at::kCPU, at::kDouble).contiguous());
  }
  return history;
}

}  // namespace duet
