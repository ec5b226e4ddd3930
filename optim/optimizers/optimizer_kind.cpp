#include "optim/optimizers/optimizer_kind.h"

#include "optim/optimizers/kernel_math.h"
#include "optim/optimizers/optimizer_options.h"

namespace duet {

const OptimizerKind* find_optimizer_kind(const std::string& name) {
  for (const OptimizerKind* kind : {&kSgd, &kAdam, &kAdamw, &kAdagrad, &kRmsprop, &kNadam, &kRadam, &kLion, &kMuon}) {
    if (name == kind->name) return kind;
  }
  return nullptr;
}

const OptimizerKind* find_optimizer_kind(const OptimizerOptions& options) {
  return options.kind ? options.kind.get() : find_optimizer_kind(options.type);
}

void run_kernel(const OptimizerKind& kind, const KernelCall& call, const OptimizerOptions& options) {
  if (kernel_math::is_narrow(call)) {
    kernel_math::step_in_float32(call, [&](const KernelCall& wide) { kind.kernel(wide, options); });
  } else {
    kind.kernel(call, options);
  }
}

}  // namespace duet
