#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>
#include "base/batch.h"
#include "base/state_dict.h"
#include "optim/detail/device_hyper_parameters.h"
#include "optim/groups/param_group.h"
#include "optim/optimizers/optimizer_options.h"

namespace duet {

// Steps parameters. Every number that may change in a run lives on the device, and how often a parameter was stepped
// too. Numbers are kept in a checkpoint as param_groups.GROUP.NAME, with the value that each was made with (configured)
// and whether it was set against its curve (kept).
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

  std::size_t group_count() const override { return numbers_.group_count(); }
  std::vector<std::string> names() const override { return numbers_.names(); }
  bool has(std::size_t group, const std::string& name) const override { return numbers_.has(group, name); }
  double get(std::size_t group, const std::string& name) const override { return numbers_.get(group, name); }
  void set(std::size_t group, const std::string& name, double value) override;
  void set_schedule(const std::string& name, Curve curve) override;
  void clear_schedule(const std::string& name) override { numbers_.clear_schedule(name); }

 protected:
  Optimizer(const OptimizerOptions& options, const std::vector<std::map<std::string, double>>& numbers,
            at::Device device)
      : options_(options), configured_(numbers), numbers_(numbers, device) {}

  // Throws ConfigError for a number that is not there, or a value that it cannot have.
  virtual void check_number(std::size_t group, const std::string& name, double value) const;

  // Calls `use(group, name, value that it was made with)`.
  template <class Use>
  void for_each_number(const Use& use) const {
    for (std::size_t group = 0; group < group_count(); ++group) {
      for (const auto& [name, value] : configured_[group]) use(group, name, value);
    }
  }
  // "param_groups.0.lr"
  static std::string number_key(const char* what, std::size_t group, const std::string& name);
  void save_numbers(StateDict& state) const;
  // Warns of those that this run was configured with otherwise: the state's are used.
  void load_numbers(const StateDict& state);

  OptimizerOptions options_;
  std::vector<std::map<std::string, double>> configured_;  // per group
  DeviceHyperParameters numbers_;
};

// Throws ConfigError for more than one group, or parameters of more than one dtype or device.
std::unique_ptr<Optimizer> make_lbfgs(const LBFGS& options, const ParamGroups& groups);

// Fused kernels walk the memory of a parameter, its gradient and its state side by side, and ask for no sizes: all must
// share one dense layout. Autograd gives gradients in the layout of their parameters. One that a user or a hook has set
// in another is replaced by a copy in that layout, so that there is one gradient, which whoever clips, steps or looks
// sees.
void lay_out_gradient(const at::Tensor& parameter);

}  // namespace duet
