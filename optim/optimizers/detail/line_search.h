#pragma once

#include <functional>
#include <ATen/core/Tensor.h>

namespace duet {

// A place on the line that is searched: `step` times the direction away from its start.
struct LinePoint {
  double step = 0;
  double loss = 0;
  at::Tensor gradient;  // of all parameters, flat
  double slope = 0;     // gradient * direction
};

struct LineSearch {
  std::function<LinePoint(double step)> evaluate;
  double direction_norm = 0;    // its largest element
  double tolerance_change = 0;  // a bracket shorter than this (times direction_norm) ends the search
  int64_t max_evaluations = 0;  // after the first
};

struct LineSearchResult {
  LinePoint point;
  int64_t evaluations = 0;
};

// Looks for a step that satisfies the strong Wolfe conditions, by the method of torch.optim.LBFGS: brackets such a
// step, then closes in by cubic interpolation. Returns the best point found, also if none satisfies them.
LineSearchResult strong_wolfe(const LineSearch& search, const LinePoint& start, double first_step);

}  // namespace duet
