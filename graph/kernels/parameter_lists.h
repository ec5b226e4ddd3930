#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <utility>
#include <vector>
#include <ATen/core/Tensor.h>
#include "graph/kernels/bitexact_kernel.h"
#include "graph/kernels/cpu_kernels.h"
#include "graph/kernels/kernel_tensors.h"
#include "graph/kernels/trial_data.h"

// What the kernels of optimizers share.

namespace duet {

// Parameters, and what an optimizer keeps for each.
class ParameterLists {
 public:
  static constexpr int64_t kUnit = 16;  // elements; ATen cuts a parameter for threads between those alone

  // The parameters first.
  explicit ParameterLists(std::vector<std::vector<at::Tensor>> lists = {});

  // Whether all are floats without gaps, alike in size, and none shares memory with another, where their order counts.
  bool fit() const;
  // Whether some of ATen's threads, which share each op, end within vectors.
  bool are_cut_within_vectors() const;

  float* floats(std::size_t list, std::size_t parameter) const;
  // Calls work(parameter, first, count) on ranges of all parameters, on several threads if there is enough to do.
  void for_each_range(const std::function<void(std::size_t, int64_t, int64_t)>& work) const;

 private:
  bool any_overlap() const;

  std::vector<std::vector<at::Tensor>> lists_;
  std::vector<int64_t> units_before_ = {0};  // each parameter, and in all
};

// The call where its kernel can run, ATen's op otherwise.
template <class Call>
BitexactKernel parameter_kernel(Call call, const OpCall& aten, const char* name) {
  return {[call = std::move(call), aten] {
            if (!call.run(cpu_kernels().pointwise)) aten.run_as_aten();
          },
          name};
}

// Not: a number that is too large for one, of which ATen's ops make an error.
inline bool fits_float(double number) {
  return !std::isfinite(number) || std::abs(number) <= std::numeric_limits<float>::max();
}

// Of many lengths, among them one that several threads share.
std::vector<std::vector<at::Tensor>> trial_lists(std::size_t lists, TrialNumbers numbers, int64_t shared_length);
std::vector<std::vector<at::Tensor>> copies_of(const std::vector<std::vector<at::Tensor>>& lists);
bool same_lists(const std::vector<std::vector<at::Tensor>>& a, const std::vector<std::vector<at::Tensor>>& b);

}  // namespace duet
