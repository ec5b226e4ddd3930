#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include "core/task.h"
#include "core/train_context.h"
#include "core/trainer_options.h"
#include "distributed/communicator.h"
#include "distributed/detail/broadcast.h"
#include "distributed/detail/gradient_reducer.h"
#include "distributed/detail/value_sum.h"
#include "optim/groups/param_group.h"

namespace duet {

// That the ranks' steps are those of the same trainer with the same options and numbers. With others the ranks' models
// would drift apart silently, and buckets of other sizes would end the processes within Gloo.
class SameSettings {
 public:
  // Throws ConfigError on all ranks if they differ.
  SameSettings(std::shared_ptr<Communicator> ranks, const TrainerOptions& options, const ParamGroups& groups,
               const HyperParameters& numbers);

  // A hook has set a number, lets one follow a curve, or no longer so.
  void note(std::size_t group, const std::string& name, double value);
  void note(const std::string& name, const HyperParameters::Curve& curve, const HyperParameters& numbers);
  void forget(const std::string& name);
  // The same on ranks that are at the same trainer and have set the same numbers.
  uint64_t hash() const { return hash_; }
  // The next prepare() compares with the other ranks.
  void recheck() { rechecks_ = true; }
  // Host side, before each step. Throws ConfigError on all ranks if something differs.
  void prepare(const HyperParameters& numbers);

 private:
  void agree(const std::string& options, const HyperParameters& numbers);

  std::shared_ptr<Communicator> ranks_;
  int64_t trainer_;                                            // how many others rank 0 had made before
  std::map<std::pair<std::size_t, std::string>, double> set_;  // numbers that follow no curve
  std::map<std::string, std::string> curves_;                  // name -> some of its values
  uint64_t hash_ = 0;
  bool rechecks_ = false;
};

// What a step does besides when several ranks train one model. Plain code over tensors and operators but for
// prepare(): eager mode runs it, graph mode records it.
class DistributedStep {
 public:
  // The ranks have the same model. Throws ConfigError on every rank if their options, groups or numbers differ.
  DistributedStep(Task& task, const NamedTensors& parameters, const ParamGroups& groups, at::Device device,
                  const TrainerOptions& options, const HyperParameters& numbers);

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
