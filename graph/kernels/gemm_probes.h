#pragma once

#include <cstdint>
#include <vector>
#include "graph/kernels/gemm_kernel.h"

namespace duet {

// Numbers whose product tells in which order it was summed up. One factor has one of `lines` in each of its rows (or
// columns), all elements of the other and of the bias are alike: each element of the result tells of its own sum.
struct GemmProbes {
  float other = 1;
  float before = -0.0F;  // adding -0 changes nothing
  std::vector<std::vector<float>> lines;
};

struct SumShape {
  int64_t k = 0;
  int64_t k_block = 0;
  bool has_before = false;
};

// Probes that together have the results of GemmOrder (expected_sum) only if each element is summed up in that order,
// with fused multiply-adds. None for a shape beyond what they can tell apart. gemm_probes.cpp says why that is so.
std::vector<GemmProbes> gemm_probes(const SumShape& shape);

// What one line of the probes gives, summed up as `order` says.
float expected_sum(const GemmProbes& probes, const std::vector<float>& line, const SumShape& shape,
                   const GemmOrder& order);

}  // namespace duet
