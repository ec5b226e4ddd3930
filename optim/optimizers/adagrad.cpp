#include "optim/optimizers/detail/fused_kernels.h"
#include "optim/optimizers/optimizer_kind.h"
#include "optim/optimizers/optimizer_options.h"

namespace duet {

// torch.optim.Adagrad(fused=True)
const OptimizerKind kAdagrad = {
    .name = "Adagrad",
    .slots = [](const OptimizerOptions& options) {
      return std::vector<StateSlot>{{.name = "sum", .initial = options.initial_accumulator_value}};
    },
    .numbers = [](const OptimizerOptions& options) -> std::map<std::string, double> {
      return {{"lr", options.lr.value_or(1e-2)}, {"lr_decay", options.lr_decay},
              {"weight_decay", options.weight_decay.value_or(0)}, {"eps", options.eps.value_or(1e-10)}};
    },
    .kernel = [](const KernelCall& call, const OptimizerOptions& options) { fused_adagrad(call, options.maximize); },
    .fused = true,
};

}  // namespace duet
