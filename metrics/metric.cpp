#include "metrics/metric.h"
#include <optional>
#include "base/error.h"
#include "metrics/detail/metric_output.h"

namespace duet {

std::vector<at::Tensor> Metric::sums(at::Device /*device*/) {
  throw ConfigError(
      "[Metric] found a metric without sums(), expected one that can be added up over ranks; override sums(), or "
      "evaluate in one process");
}

void MeanLoss::add(const Batch& /*batch*/, const NamedTensors& outputs, double weight) {
  mean_.add("MeanLoss", "loss", metric_output("MeanLoss", outputs, "loss"), weight);
}

MetricValues MeanLoss::compute() const {
  const std::optional<double> mean = mean_.value();
  if (!mean) return {};
  return {{"loss", *mean}};
}

}  // namespace duet
