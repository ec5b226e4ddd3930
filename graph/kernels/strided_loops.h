#pragma once

#include <array>
#include <cstdint>
#include <vector>
#include <ATen/core/Tensor.h>
#include "graph/kernels/pointwise_kernels.h"
#include "graph/kernels/row_kernels.h"

namespace duet {

// How an op on each element by itself goes through its tensors: dimensions in the order of the result's memory, joined
// where all of them allow it, and of broadcast ones no step.
class StridedLoops {
 public:
  StridedLoops() = default;
  // y = f(a, b). Undefined b: f reads a number, or a alone.
  StridedLoops(const at::Tensor& y, const at::Tensor& a, const at::Tensor& b);

  // Whether there are some whose innermost one is over neighbours.
  bool exist() const { return !sizes_.empty(); }
  bool is_one() const { return sizes_.size() == 1; }
  int64_t innermost() const { return sizes_.front(); }
  int64_t elements() const { return tensors_[0].numel(); }

  // Of the outermost dimension; where it is the only one, single elements.
  int64_t rows() const { return sizes_.back(); }
  // Whether row i is the i-th of equal parts of each tensor's memory, or the same for all i. The first ones: `cut`.
  bool go_by_parts(std::vector<at::Tensor>& cut) const;

  // For some of the rows. `numbers`: what stands for an undefined b, and what the kernel takes besides.
  void run(PointwiseKernel kernel, int64_t begin, int64_t end, const std::array<float, 2>& numbers) const;

 private:
  void advance(Pointwise& work, std::size_t dim, int64_t by) const;
  void run_dims(std::size_t dim, const IndexRange& range, PointwiseKernel kernel, Pointwise work) const;

  std::array<at::Tensor, 3> tensors_;            // y, a, b
  std::vector<int64_t> sizes_;                   // the innermost first
  std::array<std::vector<int64_t>, 3> strides_;  // in floats
};

}  // namespace duet
