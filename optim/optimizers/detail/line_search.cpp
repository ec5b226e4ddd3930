#include "optim/optimizers/detail/line_search.h"
#include <algorithm>
#include <array>
#include <cmath>
#include <tuple>
#include <utility>

namespace duet {

namespace {

constexpr double kDecrease = 1e-4;  // c1: the loss must fall at least this share of what the slope promises
constexpr double kCurvature = 0.9;  // c2: the slope must flatten to this share of its start

// Where the cubic through two points and their slopes is least, kept within [low, high].
double cubic_minimum(const LinePoint& a, const LinePoint& b, double low, double high) {
  const auto& [first, second] = a.step <= b.step ? std::tie(a, b) : std::tie(b, a);
  const double d1 = a.slope + b.slope - 3 * (a.loss - b.loss) / (a.step - b.step);
  const double square = d1 * d1 - a.slope * b.slope;
  if (!(square >= 0)) return (low + high) / 2;
  const double d2 = std::sqrt(square);
  const double share = (second.slope + d2 - d1) / (second.slope - first.slope + 2 * d2);
  return std::min(std::max(second.step - (second.step - first.step) * share, low), high);
}

class Search {
 public:
  Search(const LineSearch& search, const LinePoint& start) : search_(search), start_(start) {}

  LineSearchResult run(double first_step) {
    bracket(first_step);
    while (!done_ && iterations_ < search_.max_evaluations && !is_short()) zoom();
    return {ends_[low_], evaluations_};
  }

 private:
  LinePoint evaluate(double step) {
    ++evaluations_;
    return search_.evaluate(step);
  }

  bool falls_too_little(const LinePoint& point) const {
    return point.loss > start_.loss + kDecrease * point.step * start_.slope;
  }
  bool is_flat(const LinePoint& point) const { return std::abs(point.slope) <= -kCurvature * start_.slope; }
  bool is_short() const {
    return std::abs(high().step - low().step) * search_.direction_norm < search_.tolerance_change;
  }

  LinePoint& low() { return ends_[low_]; }
  LinePoint& high() { return ends_[1 - low_]; }
  const LinePoint& low() const { return ends_[low_]; }
  const LinePoint& high() const { return ends_[1 - low_]; }
  void find_low() { low_ = ends_[0].loss <= ends_[1].loss ? 0 : 1; }
  void take_bracket(LinePoint a, LinePoint b) {
    ends_ = {std::move(a), std::move(b)};
    find_low();
  }

  // Goes outward until the points on both sides of a suitable step are known, or one is found.
  void bracket(double first_step) {
    LinePoint previous = start_;
    LinePoint point = evaluate(first_step);
    for (; iterations_ < search_.max_evaluations; ++iterations_) {
      if (falls_too_little(point) || (iterations_ > 1 && point.loss >= previous.loss))
        return take_bracket(previous, point);
      if (is_flat(point)) {
        done_ = true;
        ends_[0] = std::move(point);
        return;
      }
      if (point.slope >= 0) return take_bracket(previous, point);
      const double least = point.step + 0.01 * (point.step - previous.step);
      const double next = cubic_minimum(previous, point, least, point.step * 10);
      previous = std::exchange(point, evaluate(next));
    }
    take_bracket(start_, point);
  }

  // A step inside the bracket; one that keeps clinging to an end is moved away from it.
  double next_step() {
    const auto [least, most] = std::minmax(ends_[0].step, ends_[1].step);
    const double step = cubic_minimum(ends_[0], ends_[1], least, most);
    const double margin = 0.1 * (most - least);
    if (!(std::min(most - step, step - least) < margin)) {
      clings_ = false;
      return step;
    }
    if (!clings_ && step < most && step > least) {
      clings_ = true;
      return step;
    }
    clings_ = false;
    return std::abs(step - most) < std::abs(step - least) ? most - margin : least + margin;
  }

  void zoom() {
    LinePoint point = evaluate(next_step());
    ++iterations_;
    if (falls_too_little(point) || point.loss >= low().loss) {
      high() = std::move(point);
      find_low();
      return;
    }
    if (is_flat(point)) {
      done_ = true;
    } else if (point.slope * (high().step - low().step) >= 0) {
      high() = low();
    }
    low() = std::move(point);
  }

  const LineSearch& search_;
  const LinePoint& start_;
  std::array<LinePoint, 2> ends_;  // of the bracket
  std::size_t low_ = 0;            // the end with the lower loss
  bool done_ = false;
  bool clings_ = false;
  int64_t iterations_ = 0;
  int64_t evaluations_ = 0;
};

}  // namespace

LineSearchResult strong_wolfe(const LineSearch& search, const LinePoint& start, double first_step) {
  return Search(search, start).run(first_step);
}

}  // namespace duet
