#include "core/trainer_options.h"
#include <algorithm>
#include <c10/util/StringUtil.h>
#include "base/device.h"
#include "base/error.h"
#include "data/data_source.h"

namespace duet {

const OptionFields& LoopOptions::fields() {
  using O = LoopOptions;
  return described<O>("LoopOptions", [](const auto& add) {
    add("max_steps", &O::max_steps, "steps that a run takes; 0: no limit").in(at_least(0));
    add("max_epochs", &O::max_epochs, "passes over the data; 0: no limit").in(at_least(0));
    add("max_seconds", &O::max_seconds, "seconds that train() may take; 0: no limit")
        .in(at_least(0))
        .expects("seconds >= 0; 0 sets no limit")
        .keyed("max_time")
        .read_by_hand("time: seconds, 1h30m, or days:hours:minutes:seconds");
    add("accumulate", &O::accumulate, "micro-batches per step").in(at_least(1));
    add("val_interval", &O::val_interval,
        "steps between validations; 0: once per epoch, or at the end of a run that ends within its first")
        .in(at_least(0));
    add("val_by_epoch", &O::val_by_epoch, "val_interval counts epochs");
    add("num_sanity_val_steps", &O::num_sanity_val_steps,
        "micro-batches of a validation that is tried before step 1, without results; -1: all")
        .in(at_least(-1));
    const auto limit = [&](const char* name, auto member, const char* meaning) {
      add(name, member, meaning).in(at_least(0)).read_by_hand("integer, or fraction above 0.0 up to 1.0");
    };
    limit("limit_train_batches", &O::limit_train_batches, "micro-batches of an epoch; 0: all");
    limit("limit_val_batches", &O::limit_val_batches, "micro-batches of a validation; 0: all");
    limit("limit_test_batches", &O::limit_test_batches, "micro-batches of a test; 0: all");
    limit("limit_predict_batches", &O::limit_predict_batches, "micro-batches of a prediction; 0: all");
    add("deterministic", &O::deterministic,
        "kernels that give the same bits in every run; an op without one is an error");
    add.key("overfit_batches", "integer, or fraction above 0.0 up to 1.0",
            "trains on the same first micro-batches in every epoch, unshuffled, and validates on as many");
    add.key("global_batch_size", "integer",
            "samples of a step, over all processes and micro-batches: sets accumulate, or data.train.batch_size where "
            "that is not given");
    add.key("fast_dev_run", "true/false or integer", "a run of so many steps that only tries everything out");
  });
}

int64_t LoopOptions::steps_per_epoch(const DataSource& data) const {
  int64_t batches = data.batches_per_epoch();
  if (limit_train_batches > 0) batches = batches > 0 ? std::min(batches, limit_train_batches) : limit_train_batches;
  return (batches + accumulate - 1) / accumulate;
}

void TrainerOptions::validate() const {
  optimizer.validate();
  for (const Schedule& schedule : schedules) check_schedule(schedule);
  if (clip_grad) std::visit([](const auto& clip) { check_options(clip); }, *clip_grad);
  if (amp && *amp != at::kBFloat16 && *amp != at::kHalf) {
    throw ConfigError(c10::str("[TrainerOptions] amp is ", *amp, ", expected BFloat16, Half or none"));
  }
  if (loss_scale) check_options(*loss_scale);
  distributed.validate();
  check_options(loop);
}

at::Device TrainerOptions::resolved_device() const {
  const Communicator& ranks = *distributed.communicator;
  const bool left_open = device == "auto" || (device == "cuda" && ranks.device().is_cuda());
  return left_open && !ranks.is_single() ? ranks.device() : parse_device(device);
}

}  // namespace duet
