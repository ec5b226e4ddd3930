#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include "core/hook.h"

// The default hooks without options. Private to duet.
namespace duet {

// The first group's learning rate as the gauge "lr", if there is one.
void publish_rate(TrainContext& context);

// Says once what a run is, as a line in the log and the text "runtime_info": version, trainer, device, seed. Publishes
// as gauges, asked only when a line is written:
//
//   lr        of the first group; max_lr beside it while another group has more
//   momentum  or the first beta, once a schedule has moved it
//   memory    MB: the most that LibTorch's allocator had in use on a GPU, the most that was resident on the CPU
//
// Of several ranks rank 0 says it, and memory is that of its process.
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
// validation and the turn of an epoch do not: TrainContext::step.seconds. Progress::epoch_seconds is that of an epoch
// that was run from its beginning, the gauge "eta" the time until the run's last step if it goes on as on average since
// before_train, validation and checkpoints included. Never syncs.
class IterTimerHook : public Hook {
 public:
  // `now` gives seconds; default: the steady clock.
  explicit IterTimerHook(std::function<double()> now = nullptr);

  std::string name() const override { return "timer"; }

  void before_train(TrainContext& context) override;
  void before_train_epoch(TrainContext& context) override;
  void after_train_epoch(TrainContext& context) override;
  void before_train_iter(TrainContext& context) override;
  void after_train_iter(TrainContext& context) override;
  void before_val(TrainContext& context) override;
  void after_val(TrainContext& context) override;
  void after_train(TrainContext& context) override;

 private:
  double eta_seconds(const TrainContext& context) const;

  std::function<double()> now_;
  std::optional<double> mark_;         // end of the last step; none: the next step starts the clock itself
  std::optional<double> epoch_start_;  // moved on by validations; none: the epoch began before this training
  double val_start_ = 0;
  double train_start_ = 0;
  int64_t start_step_ = 0;
};

// Each epoch has an order of its own, which follows from (seed, epoch) alone: the trainer tells the data source the
// number of every epoch. This hook warns once if the source gives its samples in the same order every time.
class DistSamplerSeedHook : public Hook {
 public:
  std::string name() const override { return "sampler_seed"; }

  void before_train(TrainContext& context) override;

 private:
  bool warned_ = false;
};

}  // namespace duet
