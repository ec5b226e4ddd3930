#pragma once

#include <memory>
#include <optional>
#include <string>
#include "core/hook.h"

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

}  // namespace duet
