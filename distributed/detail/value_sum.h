#pragma once

#include "distributed/communicator.h"
#include "core/step_observer.h"

#include <memory>
#include <string>
#include <vector>

namespace duet {

// Sums the loss and the logged values of a step over the ranks, of which each has its share: one small reduction in
// float64. Plain code over tensors and operators, which a recorded step contains.
class ValueSum {
 public:
  ValueSum(std::shared_ptr<Communicator> communicator, at::Device device);

  // Sends this rank's share. On a rank without a micro-batch `output` is empty. Throws ConfigError if the ranks log
  // different names, or other ones than at the first step.
  void start(const StepResult& output);
  // Waits, and replaces the values by the sums.
  void finish(StepResult& output);

 private:
  struct Value {
    std::string name;
    at::ScalarType dtype;
  };
  void agree(const StepResult& output);

  std::shared_ptr<Communicator> communicator_;
  at::Device device_;
  std::vector<Value> plan_;  // the loss comes first; empty: not agreed yet
  at::Tensor values_;        // float64, one per entry of plan_
};

}  // namespace duet
