#pragma once

#include <string>
#include <vector>
#include "metric.h"

namespace duet {

// exp of the mean loss, weighted by Task::weight: per token, if the task's weight counts tokens. Reported as
// "perplexity"; infinite where exp overflows.
class Perplexity : public Metric {
 public:
  // `loss`: the output that holds a micro-batch's mean negative log-likelihood (natural logarithm).
  explicit Perplexity(std::string loss = "loss");

  std::vector<std::string> names() const override { return {"perplexity"}; }
  void reset() override { mean_.reset(); }
  void add(const Batch& batch, const NamedTensors& outputs, double weight) override;
  MetricValues compute() const override;
  std::vector<at::Tensor> sums(at::Device device) override { return mean_.sums(device); }

 private:
  std::string loss_;
  WeightedMean mean_;
};

}  // namespace duet
