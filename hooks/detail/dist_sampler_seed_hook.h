#pragma once

#include "core/hook.h"

namespace duet {

// Sees to it that each epoch has an order of its own. The trainer tells the data source the number of every epoch by
// itself, and an order follows from (seed, epoch) alone, alike in every process; this hook warns once if the source
// gives its samples in the same order every time.
class DistSamplerSeedHook : public Hook {
 public:
  std::string name() const override { return "sampler_seed"; }
  int priority() const override { return kNormal; }

  void before_train(TrainContext& context) override;

 private:
  bool warned_ = false;
};

}  // namespace duet
