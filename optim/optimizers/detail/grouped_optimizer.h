#pragma once

#include <string>
#include <vector>
#include "base/detail/tensor_layout.h"
#include "optim/optimizers/detail/optimizer.h"
#include "optim/optimizers/optimizer_kind.h"

namespace duet {

// What all optimizers share: groups and their numbers, state tensors per parameter, step counts, which parameters take
// part in a step (those with a gradient, as in torch.optim), skipped steps, and the state in a checkpoint. A kind adds
// its kernel.
// It is large so that a kind can be small.
class GroupedOptimizer : public Optimizer {
 public:
  GroupedOptimizer(const OptimizerKind& kind, const OptimizerOptions& options, const ParamGroups& groups,
                   bool may_skip);

  void set_schedule(const std::string& name, Curve curve) override;
  void clear_schedule(const std::string& name) override;
  int64_t applied() const override;

  void begin() override;
  void step(const at::Tensor& grad_scale, const at::Tensor& found_inf) override;
  void end() override;
  const at::Tensor& applied_steps() const override { return applied_; }
  void append_key(std::vector<int64_t>& key) const override;
  int64_t plan_version() const override { return plan_version_; }
  NamedTensors mutable_state() const override;

  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

 private:
  struct Parameter {
    std::string name;
    at::Tensor value;
    TensorLayout layout;  // that it had when its state was made
    std::size_t group = 0;
    std::vector<at::Tensor> state{};  // by slot; undefined where this parameter has none
    std::size_t counter = 0;
  };
  struct Call {
    KernelCall tensors;  // gradients are filled in per step
    std::size_t counter = 0;
  };

  void add(const std::string& name, const at::Tensor& value, std::size_t group);
  void follow_layouts();
  void follow_layout(Parameter& parameter);
  void refresh_plan(const std::vector<bool>& has_gradient);
  void split_counters(const std::vector<bool>& has_gradient);
  void plan_calls(std::size_t group, std::size_t counter, const std::vector<bool>& has_gradient);
  bool can_be_fused() const;
  void choose_kernel();
  void run(KernelCall& call, const at::Tensor& grad_scale, const at::Tensor& found_inf);
  void run_over_tensors(const KernelCall& call) const;
  void run_unfused(KernelCall& call, const at::Tensor& grad_scale, const at::Tensor& found_inf);
  void check_number(std::size_t group, const std::string& name, double value) const override;

  // Calls `use(parameter's name, slot's name, tensor)`.
  template <class Use>
  void for_each_state(const Use& use) const {
    for (const Parameter& parameter : parameters_) {
      for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
        if (parameter.state[slot].defined()) use(parameter.name, slots_[slot].name, parameter.state[slot]);
      }
    }
  }

  std::string kind_text() const;
  void check_fits(const StateDict& state) const;
  void load_counters(const StateDict& state);

  const OptimizerKind& kind_;
  std::vector<StateSlot> slots_;
  std::vector<Parameter> parameters_;
  bool may_skip_;
  bool fused_;                        // the kind's fused kernel steps; found out when a step begins
  std::vector<at::Tensor> counters_;  // steps of all parameters that were stepped equally often: normally there is one
  at::Tensor applied_;
  int64_t applied_host_ = 0;  // the same, if no step is ever skipped

  std::vector<bool> planned_;  // which parameters had a gradient when calls_ was made
  std::vector<Call> calls_;
  int64_t plan_version_ = 0;  // changes whenever a recorded step would no longer be right
};

}  // namespace duet
