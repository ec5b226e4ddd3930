#pragma once

#include <cstdint>
#include <memory>
#include <vector>
#include "../../base/options.h"

namespace duet {

class Task;

struct MlpOptions {
  int64_t in_features = 784;  // values of one sample, whatever its shape
  int64_t num_classes = 10;
  std::vector<int64_t> hidden = {128};  // sizes of the hidden layers; empty: logistic regression
  double dropout = 0;                   // after every hidden layer, in [0, 1)

  static const OptionFields& fields();
  // Throws ConfigError naming the field and its range.
  void validate() const { check_options(*this); }
};

// Linear layers with ReLU between them. Takes "image" [N, ...] and "target" int64 [N].
std::unique_ptr<Task> make_mlp(const MlpOptions& options = {});

}  // namespace duet
