#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>
#include <ATen/core/Tensor.h>
#include "graph/kernels/bitexact_kernel.h"
#include "graph/kernels/row_kernels.h"

// What the passes ask of tensors, and how work is cut for threads.

namespace duet {

// Dense floats on the CPU.
bool is_float(const at::Tensor& tensor);
// Without gaps.
bool is_contiguous_float(const at::Tensor& tensor);
bool is_contiguous_float(const at::Tensor& tensor, int64_t elements);  // so many

// Floats plane by plane: what ATen takes for NCHW and no other order.
bool are_images(const at::Tensor& tensor);

// A small tensor as rows that are `width` wide; none if it cannot be, or is so large that ATen is as fast.
RowShape rows_of(const at::Tensor& x, int64_t width);

// What decides how ATen computes on such tensors: settings, and how each one lies in memory.
std::string trial_key(const std::vector<at::Tensor>& tensors);

// Whether none of `results` shares memory with another tensor of the two lists; undefined ones share none.
bool share_no_memory(const std::vector<at::Tensor>& results, const std::vector<at::Tensor>& inputs);

inline const float* floats_of(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<const float*>(tensor.const_data_ptr()) : nullptr;
}
inline float* writable_floats_of(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<float*>(tensor.mutable_data_ptr()) : nullptr;
}

// Of the ranges into which ATen cuts `count` elements for its threads, of which each gets `grain` at least.
int64_t length_of_ranges(int64_t count, int64_t grain);

constexpr int64_t kVectors = 64;  // elements of as many as a loop of ATen's takes at once
// Whether ATen's threads share arithmetic so that their parts, or rows of this width, do not end between vectors, as
// those of our threads may.
bool is_cut_within_vectors(int64_t count, int64_t width);

// Of `count` things of `elements` in all, for threads that have enough to do.
int64_t number_of_parts(int64_t count, int64_t elements);

// Calls part(begin, end) on ranges of [0, count), on several threads if the elements of all are worth it. The result
// may not depend on where the ranges end.
void for_each_part(int64_t count, int64_t elements, const std::function<void(int64_t begin, int64_t end)>& part);
// All that the work does, alone.
void run_all(const RowByRow& work, int64_t elements);
// As for_each_part; whether all gave true.
bool on_all_ranges(int64_t count, int64_t elements, const std::function<bool(const IndexRange& range)>& work);

// As on_all_ranges, of so many parts; each is told which it is.
bool on_all_parts(int64_t count, int64_t parts, const std::function<bool(int64_t part, const IndexRange& range)>& work);

// Of the calling thread, at a 64-byte boundary, until it asks again.
float* scratch_memory(int64_t floats);

// The time of `ours` as a multiple of that of `theirs`: the shortest of some runs of both, by turns, since what else
// the machine does slows both down.
double time_ratio(const std::function<void()>& ours, const std::function<void()>& theirs);

using Pair = std::array<int64_t, 2>;
// One or two numbers, as ATen takes them; none: `otherwise`.
Pair pair_of(const c10::IValue& value, const Pair& otherwise);

// Not where only the calling thread flushes denormals: which elements that reaches depends on how ATen cuts them.
bool threads_round_alike();
// Whether all round to the nearest and keep denormals.
bool rounding_is_default();

}  // namespace duet
