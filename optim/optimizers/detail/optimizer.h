#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>
#include "base/batch.h"
#include "base/state_dict.h"
#include "optim/groups/param_group.h"
#include "optim/optimizers/optimizer_options.h"

namespace duet {

// Steps parameters. Every number that may change in a run lives on the device, and how often a parameter was stepped
// too.
class Optimizer : public HyperParameters, public Stateful {
 public:
  // `may_skip`: step() will be given found_inf. Throws ConfigError for options or parameters that do not fit.
  static std::unique_ptr<Optimizer> create(const OptimizerOptions& options, const ParamGroups& groups,
                                           bool may_skip = false);
  static std::unique_ptr<Optimizer> create(const OptimizerOptions& options, const NamedTensors& parameters);

  // Host side before a step, never captured.
  virtual void begin() = 0;
  // One step on every parameter that has a gradient. Gradients are divided by `grad_scale` (float32, one element) if it
  // is defined, and nothing changes if `found_inf` (likewise) is 1.
  virtual void step(const at::Tensor& grad_scale, const at::Tensor& found_inf) = 0;
  void step() { step({}, {}); }
  // Host side after a step ran, eager or replayed.
  virtual void end() = 0;

  // Whether a step evaluates the loss again, as often as it needs: it can then not be captured, and step_with() is
  // called.
  virtual bool needs_closure() const { return false; }
  // `closure` clears the gradients, computes them and returns the loss. Returns the loss of the first evaluation.
  virtual at::Tensor step_with(const std::function<at::Tensor()>& closure);

  // int64, one element, on the device: steps that were not skipped.
  virtual const at::Tensor& applied_steps() const = 0;

  virtual void append_key(std::vector<int64_t>& key) const = 0;
  // Grows when what a step does changes for good; part of the key.
  virtual int64_t plan_version() const { return 0; }
  // Every tensor that step() changes besides the parameters.
  virtual NamedTensors mutable_state() const = 0;
};

// Throws ConfigError for more than one group, or parameters of more than one dtype or device.
std::unique_ptr<Optimizer> make_lbfgs(const LBFGS& options, const ParamGroups& groups);

}  // namespace duet
