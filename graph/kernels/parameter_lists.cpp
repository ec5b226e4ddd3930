#include "graph/kernels/parameter_lists.h"
#include <algorithm>
#include <tuple>
#include <ATen/Parallel.h>
#include "base/detail/bits.h"

namespace duet {

ParameterLists::ParameterLists(std::vector<std::vector<at::Tensor>> lists) : lists_(std::move(lists)) {
  if (lists_.empty()) return;
  for (const at::Tensor& param : lists_.front())
    units_before_.push_back(units_before_.back() + (param.numel() + kUnit - 1) / kUnit);
}

bool ParameterLists::fit() const {
  const std::vector<at::Tensor>& params = lists_.front();
  for (const std::vector<at::Tensor>& list : lists_) {
    for (std::size_t i = 0; i < params.size(); ++i) {
      if (!is_contiguous_float(list[i]) || list[i].sizes() != params[i].sizes()) return false;
    }
  }
  return !any_overlap();
}

bool ParameterLists::any_overlap() const {
  std::vector<std::tuple<const void*, int64_t, int64_t>> places;
  for (const std::vector<at::Tensor>& list : lists_) {
    for (const at::Tensor& tensor : list) {
      const int64_t begin = tensor.storage_offset();
      if (tensor.numel() > 0)
        places.emplace_back(tensor.storage().unsafeGetStorageImpl(), begin, begin + tensor.numel());
    }
  }
  std::sort(places.begin(), places.end());
  return std::adjacent_find(places.begin(), places.end(), [](const auto& a, const auto& b) {
           return std::get<0>(a) == std::get<0>(b) && std::get<1>(b) < std::get<2>(a);
         }) != places.end();
}

bool ParameterLists::are_cut_within_vectors() const {
  return std::ranges::any_of(
      lists_.front(), [](const at::Tensor& param) { return is_cut_within_vectors(param.numel(), param.numel()); });
}

float* ParameterLists::floats(std::size_t list, std::size_t parameter) const {
  return writable_floats_of(lists_[list][parameter]);
}

void ParameterLists::for_each_range(const std::function<void(std::size_t, int64_t, int64_t)>& work) const {
  for_each_part(units_before_.back(), units_before_.back() * kUnit, [&](int64_t begin, int64_t end) {
    for (std::size_t i = 0; i < lists_.front().size(); ++i) {
      const int64_t first = std::max(begin - units_before_[i], int64_t{0}) * kUnit;
      const int64_t count = std::min((end - units_before_[i]) * kUnit, lists_.front()[i].numel()) - first;
      if (count > 0) work(i, first, count);
    }
  });
}

std::vector<std::vector<at::Tensor>> trial_lists(std::size_t lists, TrialNumbers numbers, int64_t shared_length) {
  std::vector<int64_t> lengths = {1000, 4099};
  const bool shared = at::get_num_threads() > 1;  // each length waits for threads
  if (shared) lengths = {1, 1000, shared_length};
  for (int64_t length = shared ? 17 : 1; length < (shared ? 33 : 70); ++length) lengths.push_back(length);
  std::vector<std::vector<at::Tensor>> found(lists);
  uint64_t seed = 0;
  for (std::vector<at::Tensor>& list : found) {
    for (const int64_t length : lengths) list.push_back(trial_tensor({length}, numbers, ++seed));
  }
  return found;
}

std::vector<std::vector<at::Tensor>> copies_of(const std::vector<std::vector<at::Tensor>>& lists) {
  std::vector<std::vector<at::Tensor>> copies = lists;
  for (std::vector<at::Tensor>& list : copies) {
    for (at::Tensor& tensor : list) tensor = tensor.clone();
  }
  return copies;
}

bool same_lists(const std::vector<std::vector<at::Tensor>>& a, const std::vector<std::vector<at::Tensor>>& b) {
  for (std::size_t list = 0; list < a.size(); ++list) {
    for (std::size_t i = 0; i < a[list].size(); ++i) {
      if (!same_bits(a[list][i], b[list][i])) return false;
    }
  }
  return true;
}

}  // namespace duet
