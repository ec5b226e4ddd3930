#include "hooks/detail/value_history.h"
#include <algorithm>
#include <cmath>
#include <numeric>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>

namespace duet {

namespace {

// As many single tensors may wait; more are put into one.
constexpr std::size_t kPack = 1024;

double median_of(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*std::max_element(values.begin(), middle) + *middle) / 2;
}

}  // namespace

void ValueHistory::add(const at::Tensor& value) {
  pending_.push_back(value.requires_grad() ? value.detach() : value);
  ++pending_count_;
  const std::size_t unpacked = pending_.size() - packed_;
  if (keep_ < kPack && unpacked >= std::max<std::size_t>(2 * keep_, 16)) {
    pending_.erase(pending_.begin(), pending_.end() - static_cast<std::ptrdiff_t>(keep_));
    pending_count_ = keep_;
  } else if (unpacked >= kPack) {
    pack();
  }
}

void ValueHistory::add(double value) {
  host_.push_back(value);
  if (host_.size() >= 2 * keep_ + 16) trim(keep_);
}

void ValueHistory::trim(std::size_t keep) {
  if (host_.size() > keep) host_.erase(host_.begin(), host_.end() - static_cast<std::ptrdiff_t>(keep));
}

void ValueHistory::pack() {
  const at::NoGradGuard no_grad;
  const auto first = pending_.begin() + static_cast<std::ptrdiff_t>(packed_);
  std::vector<at::Tensor> single(first, pending_.end());
  for (at::Tensor& value : single) {
    if (value.dim() > 0) value = value.reshape({});
  }
  pending_.erase(first, pending_.end());
  pending_.push_back(at::stack(single));
  ++packed_;
}

void ValueHistory::unread(std::vector<at::Tensor>& tensors) {
  if (packed_ == 0 && pending_.size() > keep_) {
    pending_.erase(pending_.begin(), pending_.end() - static_cast<std::ptrdiff_t>(keep_));
    pending_count_ = keep_;
  }
  tensors.insert(tensors.end(), pending_.begin(), pending_.end());
}

const double* ValueHistory::take(const double* numbers) {
  const double* end = numbers + pending_count_;
  host_.insert(host_.end(), numbers, end);
  pending_.clear();
  pending_count_ = packed_ = 0;
  return end;
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
  if (!pending_.empty()) {
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> flat;
    for (const at::Tensor& value : pending_) {
      flat.push_back(value.reshape({-1}).to(pending_.back().device(), at::kDouble));
    }
    state.set("unread", at::cat(flat));
  }
  return state;
}

ValueHistory ValueHistory::from_state(const StateDict& state, std::size_t keep) {
  ValueHistory history(keep);
  for (const char* part : {"read", "unread"}) {
    if (!state.has(part)) continue;
    const at::Tensor values = state.tensor(part).reshape({-1}).to(at::kCPU, at::kDouble).contiguous();
    const double* first = values.const_data_ptr<double>();
    history.host_.insert(history.host_.end(), first, first + values.numel());
  }
  return history;
}

}  // namespace duet
