#pragma once

#include <cstdint>
#include <string>
#include <vector>
#include <ATen/core/Tensor.h>
#include "base/state_dict.h"

namespace duet {

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

  // Appends what was not read yet and is still wanted to `tensors`, all 1-d or 0-d, oldest first.
  void unread(std::vector<at::Tensor>& tensors);
  // Takes the numbers of what unread() gave; returns the position after them.
  const double* take(const double* numbers);

  // After a take(): mean, median, min, max or current of the last `window` values, or of all there are. NaN if one of
  // them is, or if there is none.
  double statistic(const std::string& method, std::size_t window) const;

  StateDict state_dict() const;
  static ValueHistory from_state(const StateDict& state, std::size_t keep);

 private:
  void pack();

  std::size_t keep_;
  std::vector<double> host_;         // oldest first; older than what is pending
  std::vector<at::Tensor> pending_;  // on the device
  std::size_t pending_count_ = 0;    // values in pending_
  std::size_t packed_ = 0;           // of its tensors, those that hold many values, at the front
};

}  // namespace duet
