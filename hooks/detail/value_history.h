#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>
#include <ATen/core/Tensor.h>
#include "base/state_dict.h"

namespace duet {

// Of at least one value; the mean of the two in the middle where their number is even.
double median_of(std::vector<double> values);

// The last values of one name. They stay where they are until somebody reads them: adding one costs no copy and no
// wait.
class ValueHistory {
 public:
  // Keeps at least the last `keep` values.
  explicit ValueHistory(std::size_t keep) : keep_(keep) {}

  void add(const at::Tensor& value);
  void add(double value);
  // Forgets what was read and is older than the last `keep` values.
  void trim(std::size_t keep);
  // Values that were read.
  std::size_t size() const { return host_.size(); }

  // What was not read yet, as one 1-d double tensor where the values are, oldest first; undefined if there is nothing.
  at::Tensor unread() const;
  // Takes the numbers of what unread() gave, now on the CPU.
  void take(const at::Tensor& numbers);

  // After a take(): mean, median, min, max or current of the last `window` values, or of all there are. NaN if one of
  // them is, or if there is none.
  double statistic(const std::string& method, std::size_t window) const;

  StateDict state_dict() const;
  static ValueHistory from_state(const StateDict& state, std::size_t keep);

 private:
  std::size_t keep_;
  std::deque<double> host_;         // oldest first; older than what is pending
  std::deque<at::Tensor> pending_;  // on the device
};

}  // namespace duet
