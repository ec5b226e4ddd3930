#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include "core/hook.h"

// What a run is and how it stands: the default hooks without options. Private to duet.
namespace duet {

// The first group's learning rate as the gauge "lr", if there is one.
void publish_rate(TrainContext& context);

// Publishes what a run is and how it stands. Once, as a line in the log and the text "runtime_info": version, trainer,
// device, seed. As gauges, asked only when a line is written:
//
//   lr        of the first group; max_lr beside it while another group has more
//   momentum  or the first beta, once a schedule has moved it
//   memory    MB: the most that LibTorch's allocator had in use on a GPU, the most that was resident on the CPU
//
// Epoch, step and their limits are in the TrainContext, where every hook and LoggerHook find them; the loss scale is
// a value of the step. Costs nothing per step. Of several ranks rank 0 says it, and memory is that of its process.
class RuntimeInfoHook : public Hook {
 public:
  std::string name() const override { return "runtime_info"; }
  int priority() const override { return kVeryHigh; }

  void before_run(TrainContext& context) override;
  void before_train(TrainContext& context) override;

  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

 private:
  struct Momentum {
    std::optional<double> initial{};  // when training first started
    bool moved = false;
  };

  void publish_momentum(TrainContext& context);

  std::shared_ptr<Momentum> momentum_ = std::make_shared<Momentum>();
};

// Measures each step from the end of the one before it, so that a wait for the device at a log line counts too;
// validation and the turn of an epoch do not. Puts the time into TrainContext::step.seconds, that of each epoch that
// was run from its beginning into Progress::epoch_seconds, and the time that the rest of the run will take into the
// gauge "eta". Never syncs.
class IterTimerHook : public Hook {
 public:
  // `now` gives seconds; default: the steady clock.
  explicit IterTimerHook(std::function<double()> now = nullptr);

  std::string name() const override { return "timer"; }
  int priority() const override { return kNormal; }

  // Seconds until the run's last step if it goes on as on average since before_train, validation and checkpoints
  // included; NaN if that is unknown.
  double eta_seconds(const TrainContext& context) const;

  void before_train(TrainContext& context) override;
  void before_train_epoch(TrainContext& context) override;
  void after_train_epoch(TrainContext& context) override;
  void before_train_iter(TrainContext& context) override;
  void after_train_iter(TrainContext& context) override;
  void before_val(TrainContext& context) override;
  void after_val(TrainContext& context) override;
  void after_train(TrainContext& context) override;

 private:
  std::function<double()> now_;
  std::optional<double> mark_;         // end of the last step; none: the next step starts the clock itself
  std::optional<double> epoch_start_;  // moved on by validations; none: the epoch began before this training
  double val_start_ = 0;
  double train_start_ = 0;
  int64_t start_step_ = 0;
};

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
