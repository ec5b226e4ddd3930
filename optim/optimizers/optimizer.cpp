#include <duet/optim/optimizers/optimizer.h>

#include <duet/core/error.h>
#include <duet/optim/optimizers/grouped_optimizer.h>
#include <duet/optim/optimizers/lbfgs.h>

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
