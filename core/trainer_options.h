#pragma once

#include <string>
#include <vector>
#include "../optim/schedules/schedule.h"
#include "loop_options.h"
#include "train_step.h"

namespace duet {

// What either trainer is built from.
struct TrainerOptions {
  OptimizerOptions optimizer{};                  // AdamW{.lr = 3e-4}, SGD{...}, ...
  std::vector<Schedule> schedules{};             // Linear{.end = 100}, Cosine{.begin = 100}, ...; none: lr stays
  std::optional<ClipGrad> clip_grad{};           // ClipNorm or ClipValue; none: no clipping
  std::optional<at::ScalarType> amp{};           // at::kBFloat16, at::kHalf: autocast; none: full precision
  std::optional<LossScaleOptions> loss_scale{};  // none: dynamic with at::kHalf, else no scaling
  NonFinite non_finite = NonFinite::kApply;      // what a step with inf or NaN does
  // Puts parameters into groups with numbers of their own; empty: one group.
  std::function<ParamGroups(Task&, const OptimizerOptions&)> param_groups{};
  LoopOptions loop{};
  DistributedOptions distributed{};  // several processes that train one model; none: this one alone
  std::string device = "auto";       // see parse_device; "auto" and "cuda" leave it to init_distributed()

  // Throws ConfigError naming the field and its range.
  void validate() const;
  at::Device resolved_device() const;
  TrainStepOptions step() const {
    return {optimizer, clip_grad, amp, loss_scale, non_finite, param_groups, distributed};
  }
};

}  // namespace duet
