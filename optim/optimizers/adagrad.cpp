#include "optim/optimizers/detail/fused_kernels.h"
#include "optim/optimizers/optimizer_kind.h"
#include "optim/optimizers/optimizer_options.h"

namespace duet {

// torch.optim.Adagrad(fused=True)
const OptimizerKind kAdagrad = {
    .name = "Adagrad",
    .slots =
        [](const OptimizerOptions& options) {
          return std::vector<StateSlot>{{.name = "sum", .initial = options.as<Adagrad>().initial_accumulator_value}};
        },
    .numbers =
        [](const OptimizerOptions& options) {
          std::map<std::string, double> numbers = numbers_in(options);
          numbers.erase("initial_accumulator_value");  // read once, when the state is made
          return numbers;
        },
    .kernel = [](const KernelCall& call,
                 const OptimizerOptions& options) { fused_adagrad(call, options.as<Adagrad>().maximize); },
    .fused = true,
};

}  // namespace duet
