#pragma once

#include <cstdint>
#include <memory>
#include <vector>
#include <duet/data/dataset.h>

// What a config may set. Reading, checking and `spirals help Spirals` follow from the description in fields().
struct SpiralsOptions {
  int64_t size = 2000;
  int64_t arms = 3;
  double noise = 0.05;
  int64_t seed = 0;
  static const duet::OptionFields& fields();
};

// Points in the plane, on the arms of a spiral: yields "point" float32 [N, 2] and "target" int64 [N], the arm.
class Spirals : public duet::Dataset {
 public:
  // Throws duet::ConfigError for options out of their ranges.
  explicit Spirals(const SpiralsOptions& options);

  int64_t size() const override { return target_.size(0); }
  duet::Batch get(const std::vector<int64_t>& indices) const override;

 private:
  at::Tensor point_, target_;
};

struct SpiralNetOptions {
  int64_t hidden = 64;
  int64_t arms = 3;
  static const duet::OptionFields& fields();
};

// Makes `type: Spirals` and `type: SpiralNet` known.
void register_types();
