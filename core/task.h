#pragma once

#include <string>
#include <vector>
#include "../base/batch.h"
#include "../optim/groups/param_group.h"

namespace duet {

// What one forward pass of a micro-batch gives.
struct StepOutput {
  at::Tensor loss;   // 0-dim, a mean over Task::weight(batch) items, attached to the autograd graph
  NamedTensors log;  // further 0-dim values to log; kept on the device until a hook reads them
};

// What the user writes: a model and what it does with a batch. The trainers ask for nothing else, and
// call training_step alike in both modes; in graph mode its C++ code runs when a step is recorded and not
// on every step, so it must not depend on host values that change (see graph_key).
//
// Of ModelInfo it must define named_parameters(); modules() and layer_depth() serve the rules for parameter groups.
class Task : public ModelInfo {
 public:
  virtual NamedTensors named_buffers() const = 0;  // with dotted names, in a fixed order; shared, not copied
  virtual void train(bool on) = 0;
  virtual void to(at::Device device) = 0;

  // Forward and loss of one micro-batch. Must not call backward.
  virtual StepOutput training_step(const Batch& batch) = 0;

  // The count that the mean in the loss is taken over: samples by default; tokens, pixels, ... if the
  // task averages over these. It makes gradient accumulation over uneven batches exact. A micro-batch
  // of weight 0 is left out.
  virtual double weight(const Batch& batch) const { return static_cast<double>(batch.size()); }

  // What evaluation needs of one batch: "loss" (0-dim) and whatever the metrics ask for, usually
  // "prediction". By default the loss of training_step.
  virtual NamedTensors validation_step(const Batch& batch);
  // Model outputs for one batch, by name. Throws ConfigError unless the task defines it.
  virtual NamedTensors predict(const Batch& batch);

  // Names every host value that training_step depends on and that may change between steps. A step is
  // captured once per key, so that a changed value is never replayed from an older capture.
  virtual std::string graph_key() const { return {}; }
};

}  // namespace duet
