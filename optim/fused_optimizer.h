#pragma once

#include <duet/optim/optimizer.h>

#include <map>
#include <string>
#include <vector>

namespace duet {

// What the optimizers over ATen's fused kernels share: groups and their numbers, per-parameter state tensors, and which
// parameters take part in a step (those with a gradient, as in torch.optim).
class FusedOptimizer : public Optimizer {
 public:
  std::size_t group_count() const override { return groups_.size(); }
  std::vector<std::string> names() const override;
  double get(std::size_t group, const std::string& name) const override;
  void set(std::size_t group, const std::string& name, double value) override;

  void step(const at::Tensor& grad_scale) override;
  void append_key(std::vector<int64_t>& key) const override;
  NamedTensors mutable_state() const override;
  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

 protected:
  struct Group {
    std::vector<std::size_t> members;       // indices into parameters
    std::map<std::string, double> numbers;  // "lr", "weight_decay", ...
    at::Tensor lr;                          // the device's copy of numbers["lr"]
  };
  // The tensors of one kernel call: parameters that have the same group and the same number of steps behind them.
  struct Call {
    std::vector<at::Tensor> parameters, gradients, steps;
    std::vector<std::vector<at::Tensor>> state;  // by slot
    bool first = false;                          // no parameter of the call was stepped before
  };

  // `slots` names the state tensors that every parameter has ("exp_avg", ...), each like the parameter.
  // `kind` names the optimizer and its flags: a state of another kind is refused.
  FusedOptimizer(std::string kind, const NamedTensors& parameters, std::map<std::string, double> numbers,
                 std::vector<std::string> slots, bool counts_steps);

  virtual void run_kernel(const Group& group, const Call& call, const at::Tensor& grad_scale) = 0;

 private:
  struct Parameter {
    std::string name;
    at::Tensor value;
    std::vector<at::Tensor> state;
    std::size_t counter = 0;
  };

  void check(const NamedTensors& parameters) const;
  void check_fits(const StateDict& state) const;
  void warn_of_other_numbers(const StateDict& state) const;
  void refresh_plan(const std::vector<bool>& has_gradient);
  void split_counters(const std::vector<bool>& has_gradient);
  const double& number(std::size_t group, const std::string& name) const;

  std::string kind_;
  std::map<std::string, double> configured_;  // the numbers it was made with
  std::vector<Parameter> parameters_;
  std::vector<std::string> slots_;
  bool counts_steps_;
  std::vector<Group> groups_;

  // One step counter for all parameters that were stepped equally often: normally a single one. Its host twin
  // only tells a first step from later ones.
  std::vector<at::Tensor> counters_;
  std::vector<bool> started_;

  std::vector<bool> planned_;      // which parameters had a gradient when calls_ was made
  std::vector<std::pair<std::size_t, Call>> calls_;  // group, tensors; gradients are filled in per step
  std::vector<std::vector<std::size_t>> call_members_;
  int64_t plan_version_ = 0;       // changes whenever a recorded step would no longer be right
};

}  // namespace duet
