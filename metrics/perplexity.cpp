#include "metrics/perplexity.h"
#include <cmath>
#include <utility>
#include "metrics/detail/metric_output.h"

namespace duet {

Perplexity::Perplexity(std::string loss) : loss_(std::move(loss)) {}

void Perplexity::add(const Batch& /*batch*/, const NamedTensors& outputs, double weight) {
  mean_.add("Perplexity", loss_, metric_output("Perplexity", outputs, loss_), weight);
}

MetricValues Perplexity::compute() const {
  if (!mean_.started()) return {};
  return {{"perplexity", std::exp(mean_.value().value_or(std::nan("")))}};
}

}  // namespace duet
