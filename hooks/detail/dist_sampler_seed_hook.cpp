#include "hooks/detail/dist_sampler_seed_hook.h"
#include "base/log.h"
#include "data/data_source.h"

namespace duet {

void DistSamplerSeedHook::before_train(TrainContext& context) {
  if (!context.is_main || warned_ || context.data == nullptr || context.data->shuffles().value_or(true)) return;
  warned_ = true;
  log_warning(
      "[DistSamplerSeedHook] the training data comes in the same order in every epoch, expected a new one each time; "
      "set shuffle: true, or remove this hook (sampler_seed) if the order is meant to stay");
}

}  // namespace duet
