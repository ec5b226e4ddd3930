#include "optim/optimizers/detail/fused_kernels.h"
#include "optim/optimizers/optimizer_kind.h"
#include "optim/optimizers/optimizer_options.h"

namespace duet {

// torch.optim.SGD(fused=True)
const OptimizerKind kSgd = {
    .name = "SGD",
    .slots = [](const OptimizerOptions& options) {
      return options.momentum.value_or(0) != 0 ? std::vector<StateSlot>{{"momentum_buffer"}} : std::vector<StateSlot>{};
    },
    .numbers = [](const OptimizerOptions& options) -> std::map<std::string, double> {
      return {{"lr", options.lr.value_or(1e-3)}, {"weight_decay", options.weight_decay.value_or(0)},
              {"momentum", options.momentum.value_or(0)}, {"dampening", options.dampening}};
    },
    .kernel = [](const KernelCall& call, const OptimizerOptions& options) {
      fused_sgd(call, options.nesterov.value_or(false), options.maximize);
    },
    .fused = true,
};

}  // namespace duet
