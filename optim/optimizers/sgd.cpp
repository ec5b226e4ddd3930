#include "optim/optimizers/detail/fused_kernels.h"
#include "optim/optimizers/optimizer_kind.h"
#include "optim/optimizers/optimizer_options.h"

namespace duet {

// torch.optim.SGD(fused=True)
const OptimizerKind kSgd = {
    .name = "SGD",
    .slots =
        [](const OptimizerOptions& options) {
          return options.as<SGD>().momentum != 0 ? std::vector<StateSlot>{{"momentum_buffer"}}
                                                 : std::vector<StateSlot>{};
        },
    .numbers = numbers_in,
    .kernel =
        [](const KernelCall& call, const OptimizerOptions& options) {
          const SGD& sgd = options.as<SGD>();
          fused_sgd(call, sgd.nesterov, sgd.maximize);
        },
    .fused = true,
};

}  // namespace duet
