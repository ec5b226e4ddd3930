#pragma once

#include "core/detail/same_settings.h"
#include "core/step_observer.h"
#include "core/task.h"
#include "distributed/communicator.h"
#include "distributed/detail/broadcast.h"
#include "distributed/detail/gradient_reducer.h"
#include "distributed/detail/value_sum.h"
#include "distributed/init_distributed.h"

namespace duet {

// What a step does besides when several ranks train one model. Plain code over tensors and operators but for
// prepare(): eager mode runs it, graph mode records it.
class DistributedStep {
 public:
  // Throws ConfigError on every rank if the ranks' models, options, groups or numbers differ.
  DistributedStep(Task& task, const NamedTensors& parameters, const ParamGroups& groups, at::Device device,
                  const TrainStepOptions& options, const HyperParameters& numbers);

  // See TrainStep. A layout is the same on all ranks before the first step.
  uint64_t fingerprint() const;
  void recheck();
  // Host side, before each step, in whichever way it runs.
  void prepare(const HyperParameters& numbers) {
    settings_.prepare(numbers);
    gradients_.prepare();
  }
  // What hooks do with numbers.
  SameSettings& settings() { return settings_; }
  // First in each run of a step.
  void begin() { gradients_.begin(); }
  // `share` are this rank's parts of the loss and of the logged values.
  void before_last_backward(const StepResult& share);
  // Gradients and `output` are the sums over all ranks then. On a rank without a micro-batch nothing came before.
  void after_backward(StepResult& output, bool has_batch);
  void after_step();

  Communicator& communicator() { return *communicator_; }

 private:
  Task& task_;
  bool broadcasts_buffers_;
  std::shared_ptr<Communicator> communicator_;
  SameSettings settings_;
  GradientReducer gradients_;
  ValueSum values_;
  BufferBroadcast buffers_;
};

}  // namespace duet
