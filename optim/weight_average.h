#pragma once

#include <cstdint>
#include <string>
#include <vector>
#include <ATen/core/Tensor.h>
#include "../base/batch.h"
#include "../base/options.h"

namespace duet {

// mmengine's averages of weights, with its names. `steps` counts steps since averaging began, which copies (steps = 0).
struct WeightAverageOptions {
  // ExponentialMovingAverage: average += momentum * (weight - average)
  // MomentumAnnealingEMA:     likewise with max(momentum, gamma / (gamma + steps))
  // StochasticWeightAverage:  the mean of the weights at steps 0, interval, 2 * interval, ...
  std::string type = "ExponentialMovingAverage";
  double momentum = 0.0002;  // in (0, 1]: how much the new value counts, not the old one
  double half_life = 0;      // Composer's: steps after which a weight counts half; 0: momentum counts
  int64_t gamma = 100;       // >= 1
  int64_t interval = 1;      // >= 1: steps between averagings

  static const OptionFields& fields();
};

// Averages of tensors that steps change. update() is code of the step: it reads nothing back to the host and holds no
// host number that changes, so that it is captured with the step. The averages never change their places in memory.
//
// An average has the dtype of its tensor, or float32 for one of 16 bits, in which small steps would round to nothing.
class WeightAverage {
 public:
  struct Item {
    std::string name;
    at::Tensor value;  // what is averaged; shared
    at::Tensor average;
    bool is_weight = true;  // false: a buffer, which a skipped step changes too
  };

  // Starts with copies of the values. Throws ConfigError for options out of range.
  explicit WeightAverage(const WeightAverageOptions& options, at::Device device);
  // Integers have no average and are left out.
  void add(const std::string& name, const at::Tensor& value, bool is_weight);
  // From here on averages these tensors instead of others of the same names. Throws ConfigError for one of another
  // shape.
  void follow(const NamedTensors& values);

  // Averages from the step that is the `first` to be applied (1: that of a fresh run), which copies; up to then the
  // averages follow the values. A new one never begins by itself.
  void start_at(int64_t first);
  int64_t start() const { return start_; }

  // `applied` (int64, one element): steps applied, the present one included. `skipped` (float32, one element) is 1 if
  // nothing may change; it may be undefined.
  void update(const at::Tensor& applied, const at::Tensor& skipped);
  // The averages become copies of the values.
  void copy_values();

  const std::vector<Item>& items() const { return items_; }

 private:
  at::Tensor weight_of_new(const at::Tensor& applied, const at::Tensor& skipped) const;
  at::Tensor formula(const at::Tensor& steps) const;

  WeightAverageOptions options_;
  std::vector<Item> items_;
  int64_t start_ = 0;
  at::Tensor start_on_device_;                // int64, 0-dim: it may change without another capture
  at::Tensor zero_, one_, momentum_, gamma_;  // float64, 0-dim
};

}  // namespace duet
