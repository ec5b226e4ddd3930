#include "optim/optimizers/optimizer.h"

#include "base/error.h"
#include "optim/optimizers/detail/grouped_optimizer.h"
#include "optim/optimizers/detail/lbfgs.h"

namespace duet {

at::Tensor Optimizer::step_with(const std::function<at::Tensor()>& closure) {
  const at::Tensor loss = closure();
  step();
  return loss;
}

std::unique_ptr<Optimizer> Optimizer::create(const OptimizerOptions& options, const ParamGroups& groups, bool may_skip) {
  options.validate();
  if (options.type == "LBFGS" && !options.kind) return std::make_unique<Lbfgs>(options, groups);
  const OptimizerKind* kind = find_optimizer_kind(options);
  require<ConfigError>(kind != nullptr, "[Optimizer] there is no optimizer '" + options.type + "'");
  return std::make_unique<GroupedOptimizer>(*kind, options, groups, may_skip);
}

std::unique_ptr<Optimizer> Optimizer::create(const OptimizerOptions& options, const NamedTensors& parameters) {
  return create(options, ParamGroups{{"", parameters, {}}});
}

}  // namespace duet
