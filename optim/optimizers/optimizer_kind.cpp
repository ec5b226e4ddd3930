#include "optim/optimizers/optimizer_kind.h"
#include "optim/detail/device_hyper_parameters.h"
#include "optim/optimizers/kernel_math.h"
#include "optim/optimizers/optimizer_options.h"

namespace duet {

const at::Tensor& KernelCall::number(const char* name) const { return numbers->tensor(group, name); }

double KernelCall::host_number(const char* name) const { return numbers->get(group, name); }

const OptimizerKind* find_optimizer_kind(const std::string& name) {
  for (const OptimizerKind* kind : {&kSgd, &kAdam, &kAdamw, &kAdagrad, &kRmsprop, &kNadam, &kRadam, &kLion, &kMuon}) {
    if (name == kind->name) return kind;
  }
  return nullptr;
}

const OptimizerKind* find_optimizer_kind(const OptimizerOptions& options) {
  return options.own_kind() != nullptr ? options.own_kind() : find_optimizer_kind(options.type());
}

std::map<std::string, double> numbers_in(const OptimizerOptions& options) {
  std::map<std::string, double> numbers;
  for (const OptionField& field : options.fields()) {
    const OptionValue value = field.get(options.data());
    if (const auto* number = std::get_if<double>(&value)) numbers.emplace(field.name, *number);
    if (field.name != "betas") continue;
    const auto& betas = std::get<std::vector<double>>(value);
    numbers.emplace("beta1", betas[0]);
    numbers.emplace("beta2", betas[1]);
  }
  return numbers;
}

void run_kernel(const OptimizerKind& kind, const KernelCall& call, const OptimizerOptions& options) {
  if (kernel_math::is_narrow(call)) {
    kernel_math::step_in_float32(call, [&](const KernelCall& wide) { kind.kernel(wide, options); });
  } else {
    kind.kernel(call, options);
  }
}

}  // namespace duet
