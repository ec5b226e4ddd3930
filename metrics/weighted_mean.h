#pragma once

#include <optional>
#include <string>
#include <vector>
#include <ATen/core/Tensor.h>

namespace duet {

// A weighted mean of losses, summed in double on their device.
class WeightedMean {
 public:
  void reset();
  // Throws DataError that begins with [who] unless `loss` is one floating-point value and `weight` 0 or more. A loss of
  // weight 0 is a mean over nothing and left out, NaN or not.
  void add(const char* who, const std::string& name, const at::Tensor& loss, double weight);
  // Nothing without weight. Reads the device.
  std::optional<double> value() const;
  // Whether something was added, be it of weight 0.
  bool started() const { return sum_.defined(); }
  // Sum and weight, as Metric::sums().
  std::vector<at::Tensor> sums(at::Device device);

 private:
  void begin(at::Device device);

  at::Tensor sum_, weight_;
};

}  // namespace duet
