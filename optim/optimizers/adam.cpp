#include "optim/optimizers/detail/fused_kernels.h"
#include "optim/optimizers/optimizer_kind.h"
#include "optim/optimizers/optimizer_options.h"

namespace duet {

namespace {

template <class T>
std::vector<StateSlot> slots(const OptimizerOptions& options) {
  std::vector<StateSlot> slots = {{"exp_avg"}, {"exp_avg_sq"}};
  if (options.as<T>().amsgrad) slots.push_back({"max_exp_avg_sq"});
  return slots;
}

}  // namespace

// torch.optim.Adam(fused=True)
const OptimizerKind kAdam = {
    .name = "Adam",
    .slots = slots<Adam>,
    .numbers = numbers_in,
    .kernel =
        [](const KernelCall& call, const OptimizerOptions& options) {
          fused_adam(call, options.as<Adam>().amsgrad, options.as<Adam>().maximize);
        },
    .fused = true,
};

// torch.optim.AdamW(fused=True)
const OptimizerKind kAdamw = {
    .name = "AdamW",
    .slots = slots<AdamW>,
    .numbers = numbers_in,
    .kernel =
        [](const KernelCall& call, const OptimizerOptions& options) {
          fused_adamw(call, options.as<AdamW>().amsgrad, options.as<AdamW>().maximize);
        },
    .fused = true,
};

}  // namespace duet
