#include "graph/kernels/strided_loops.h"
#include <algorithm>
#include <ATen/ExpandUtils.h>
#include <ATen/TensorIterator.h>
#include "graph/kernels/kernel_tensors.h"

namespace duet {

StridedLoops::StridedLoops(const at::Tensor& y, const at::Tensor& a, const at::Tensor& b) : tensors_{y, a, b} {
  const auto fits = [&](const at::Tensor& from) {
    return !from.defined() || at::is_expandable_to(from.sizes(), y.sizes());
  };
  if (y.numel() == 0 || !fits(a) || !fits(b)) return;
  at::TensorIteratorConfig config;
  config.set_check_mem_overlap(false).resize_outputs(false).add_output(y).add_const_input(a);
  if (b.defined()) config.add_const_input(b);
  const at::TensorIterator iterator = config.build();
  const auto dims = static_cast<std::size_t>(iterator.ndim());
  for (int i = 0; i < iterator.ntensors(); ++i) {
    std::vector<int64_t>& strides = strides_[static_cast<std::size_t>(i)];
    for (const int64_t bytes : iterator.strides(i)) strides.push_back(bytes / static_cast<int64_t>(sizeof(float)));
    strides.resize(std::max<std::size_t>(dims, 1), i == 0 ? 1 : 0);
    if (strides.front() != 1 && (i == 0 || strides.front() != 0)) return;
  }
  strides_[2].resize(strides_[0].size(), 0);
  sizes_.assign(iterator.shape().begin(), iterator.shape().end());
  if (sizes_.empty()) sizes_.push_back(1);
  for (std::size_t d = 1; d < sizes_.size(); ++d) {  // the result's elements lie apart
    if (strides_[0][d] < sizes_[d - 1] * strides_[0][d - 1]) sizes_.clear();
  }
}

bool StridedLoops::go_by_parts(std::vector<at::Tensor>& cut) const {
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const at::Tensor& tensor = tensors_[i];
    if (!tensor.defined() || (strides_[i].back() == 0 && rows() > 1)) continue;
    if (!tensor.is_non_overlapping_and_dense() || strides_[i].back() * rows() != tensor.numel()) return false;
    cut.push_back(tensor);
  }
  return true;
}

void StridedLoops::run(PointwiseKernel kernel, int64_t begin, int64_t end, const std::array<float, 2>& numbers) const {
  const std::size_t dims = sizes_.size();
  Pointwise work{.y = writable_floats_of(tensors_[0]), .count = sizes_[0], .number = numbers[1]};
  work.a = floats_of(tensors_[1]);
  work.b = tensors_[2].defined() ? floats_of(tensors_[2]) : &numbers[0];
  work.a_step = strides_[1][0];
  work.b_step = strides_[2][0];
  if (dims > 1) {
    work.rows = sizes_[1];
    work.y_row = strides_[0][1];
    work.a_row = strides_[1][1];
    work.b_row = strides_[2][1];
  }
  if (dims > 2) return run_dims(dims - 1, {begin, end}, kernel, work);
  (dims == 1 ? work.count : work.rows) = end - begin;
  advance(work, dims - 1, begin);
  kernel(work);
}

void StridedLoops::advance(Pointwise& work, std::size_t dim, int64_t by) const {
  work.y += by * strides_[0][dim];
  work.a += by * strides_[1][dim];
  work.b += by * strides_[2][dim];
}

// The two innermost dimensions are the kernel's.
void StridedLoops::run_dims(std::size_t dim, const IndexRange& range, PointwiseKernel kernel, Pointwise work) const {
  advance(work, dim, range.begin);
  for (int64_t i = range.begin; i < range.end; ++i) {
    dim == 2 ? kernel(work) : run_dims(dim - 1, {0, sizes_[dim - 1]}, kernel, work);
    advance(work, dim, 1);
  }
}

}  // namespace duet
