#pragma once

#include <duet/core/comm/communicator.h>
#include <duet/core/task.h>
#include <duet/core/update_rule.h>
#include <duet/optim/distributed/buffer_broadcast.h>
#include <duet/optim/distributed/distributed_options.h>
#include <duet/optim/distributed/gradient_reducer.h>
#include <duet/optim/distributed/same_settings.h>
#include <duet/optim/distributed/value_sum.h>

namespace duet {

// What an update does besides when several ranks train one model. Plain code over tensors and operators but for
// prepare(): eager mode runs it, graph mode records it.
class DistributedUpdate {
 public:
  // Throws ConfigError on every rank if the ranks' models, options, groups or numbers differ.
  DistributedUpdate(Task& task, const NamedTensors& parameters, const ParamGroups& groups, at::Device device,
                    const UpdateOptions& options, const HyperParameters& numbers);

  // See UpdateRule. A layout is the same on all ranks before the first update.
  double fingerprint() const;
  void agree_anew();
  // Host side, before each update, in whichever way it runs.
  void prepare(const HyperParameters& numbers) {
    settings_.prepare(numbers);
    gradients_.prepare();
  }
  // What hooks do with numbers.
  SameSettings& settings() { return settings_; }
  // First in each run of an update.
  void begin() { gradients_.begin(); }
  // `share` are this rank's parts of the loss and of the logged values.
  void before_last_backward(const UpdateOutput& share);
  // Gradients and `output` are the sums over all ranks then. On a rank without a micro-batch nothing came before.
  void after_backward(UpdateOutput& output, bool has_batch);
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
