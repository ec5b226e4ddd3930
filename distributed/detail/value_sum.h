#pragma once

#include <memory>
#include <string>
#include <vector>
#include "base/batch.h"
#include "distributed/communicator.h"

namespace duet {

// Sums the loss and the logged values of a step over the ranks, of which each has its share: one small reduction in
// float64. Plain code over tensors and operators, which a recorded step contains.
class ValueSum {
 public:
  ValueSum(std::shared_ptr<Communicator> communicator, at::Device device);

  // Sends this rank's share, nothing on a rank without a micro-batch. Throws ConfigError if the ranks have different
  // names or types, or other names than at the first step.
  void start(const NamedTensors& values);
  // Waits, and gives the sums.
  NamedTensors finish();

 private:
  struct Value {
    std::string name;
    at::ScalarType dtype;
  };
  void agree(const NamedTensors& values);

  std::shared_ptr<Communicator> communicator_;
  at::Device device_;
  std::vector<Value> plan_;  // empty: not agreed yet
  at::Tensor values_;        // float64, one per entry of plan_
};

}  // namespace duet
