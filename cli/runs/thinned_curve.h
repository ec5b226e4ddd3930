#pragma once

#include <cstddef>
#include <string>
#include <vector>
#include "cli/runs/logged_run.h"

namespace duet {

// A curve as a page shows it: as logged, or with neighbours put together.
struct ThinnedCurve {
  std::vector<CurvePoint> points;      // finite values: the mean of those that each stands for
  std::vector<double> lows, highs;     // the smallest and largest of these; empty: nothing was put together
  std::vector<CurvePoint> not_finite;  // the first of those that are NaN or infinite
  std::size_t logged = 0;              // points there were
  std::size_t not_finite_count = 0;
};

// At most `most` points (at least 4), from the first step to the last. Means with their extremes, not a choice of
// points: what is smoothed later must not lean towards outliers, and no outlier may be lost.
ThinnedCurve thinned(const Curve& curve, std::size_t most);

}  // namespace duet
