#include "optim/optimizers/detail/fused_kernels.h"
#include "optim/optimizers/optimizer_kind.h"
#include "optim/optimizers/optimizer_options.h"

namespace duet {

namespace {

std::vector<StateSlot> slots(const OptimizerOptions& options) {
  std::vector<StateSlot> slots = {{"exp_avg"}, {"exp_avg_sq"}};
  if (options.amsgrad) slots.push_back({"max_exp_avg_sq"});
  return slots;
}

std::map<std::string, double> numbers(const OptimizerOptions& options, double weight_decay) {
  const auto [beta1, beta2] = options.betas.value_or(std::array{0.9, 0.999});
  return {{"lr", options.lr.value_or(1e-3)}, {"weight_decay", options.weight_decay.value_or(weight_decay)},
          {"beta1", beta1}, {"beta2", beta2}, {"eps", options.eps.value_or(1e-8)}};
}

}  // namespace

// torch.optim.Adam(fused=True)
const OptimizerKind kAdam = {
    .name = "Adam",
    .slots = slots,
    .numbers = [](const OptimizerOptions& options) { return numbers(options, 0); },
    .kernel = [](const KernelCall& call, const OptimizerOptions& options) {
      fused_adam(call, options.amsgrad, options.maximize);
    },
    .fused = true,
};

// torch.optim.AdamW(fused=True)
const OptimizerKind kAdamw = {
    .name = "AdamW",
    .slots = slots,
    .numbers = [](const OptimizerOptions& options) { return numbers(options, 0.01); },
    .kernel = [](const KernelCall& call, const OptimizerOptions& options) {
      fused_adamw(call, options.amsgrad, options.maximize);
    },
    .fused = true,
};

}  // namespace duet
