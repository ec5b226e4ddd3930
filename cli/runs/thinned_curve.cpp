#include "cli/runs/thinned_curve.h"
#include <algorithm>
#include <cmath>
#include <utility>

namespace duet {

namespace {

constexpr std::size_t kShownNotFinite = 50;

// The points [begin, end) as one.
void add_bucket(const std::vector<CurvePoint>& points, std::size_t begin, std::size_t end, ThinnedCurve& out) {
  CurvePoint mean;
  double low = points[begin].value, high = low;
  const auto count = static_cast<double>(end - begin);
  for (std::size_t i = begin; i < end; ++i) {
    mean.value += points[i].value / count;
    low = std::min(low, points[i].value);
    high = std::max(high, points[i].value);
  }
  const CurvePoint& middle = points[begin + (end - begin) / 2];
  mean.step = middle.step;
  mean.seconds = middle.seconds;
  out.points.push_back(mean);
  out.lows.push_back(low);
  out.highs.push_back(high);
}

}  // namespace

ThinnedCurve thinned(const Curve& curve, std::size_t most) {
  ThinnedCurve out;
  out.logged = curve.points.size();
  std::vector<CurvePoint> finite;
  finite.reserve(curve.points.size());
  for (const CurvePoint& point : curve.points) {
    if (std::isfinite(point.value)) {
      finite.push_back(point);
    } else if (++out.not_finite_count <= kShownNotFinite) {
      out.not_finite.push_back(point);
    }
  }
  if (finite.size() <= std::max<std::size_t>(most, 4)) {
    out.points = std::move(finite);
    return out;
  }
  const std::size_t buckets = std::max<std::size_t>(most, 4);
  for (std::size_t i = 0; i < buckets; ++i) {
    add_bucket(finite, i * finite.size() / buckets, (i + 1) * finite.size() / buckets, out);
  }
  // The curve begins and ends where the logged one does.
  for (const auto& [shown, logged] :
       {std::pair(&out.points.front(), &finite.front()), std::pair(&out.points.back(), &finite.back())}) {
    shown->step = logged->step;
    shown->seconds = logged->seconds;
  }
  return out;
}

}  // namespace duet
