#pragma once

#include <memory>
#include "optim/optimizers/optimizer_kind.h"
#include "optim/optimizers/optimizer_options.h"

namespace duet::testing {

// The step that a fused kind takes on a device where its kernel will not do, as a kind of its own: so it runs anywhere.
inline OptimizerOptions over_tensors(const OptimizerOptions& options) {
  const OptimizerKind& fused = *find_optimizer_kind(options);
  return OptimizerOptions(std::make_shared<const OptimizerKind>(OptimizerKind{
      .name = fused.name + "OverTensors",
      .slots = [&fused, options](const OptimizerOptions&) { return fused.slots(options); },
      .numbers = [&fused, options](const OptimizerOptions&) { return fused.numbers(options); },
      .kernel = [&fused, options](const KernelCall& call, const OptimizerOptions&) { fused.unfused(call, options); },
  }));
}

}  // namespace duet::testing
