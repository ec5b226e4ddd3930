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

std::unique_ptr<Optimizer> Optimizer::create(const OptimizerOptions& options, const ParamGroups& groups,
                                             bool may_skip) {
  options.validate();
  if (const LBFGS* lbfgs = options.get_if<LBFGS>()) return std::make_unique<Lbfgs>(*lbfgs, groups);
  return std::make_unique<GroupedOptimizer>(*find_optimizer_kind(options), options, groups, may_skip);
}

std::unique_ptr<Optimizer> Optimizer::create(const OptimizerOptions& options, const NamedTensors& parameters) {
  return create(options, ParamGroups{{"", parameters, {}}});
}

}  // namespace duet
