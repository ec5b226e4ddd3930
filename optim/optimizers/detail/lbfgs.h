#pragma once

#include <deque>
#include "optim/optimizers/detail/optimizer.h"

namespace duet {

// The method of torch.optim.LBFGS. One step evaluates loss and gradients up to max_eval times, at places that depend on
// the values it finds: it reads them on the host, so it runs eager only.
class Lbfgs : public Optimizer {
 public:
  // Throws ConfigError for more than one group, or parameters of more than one dtype or device.
  Lbfgs(const LBFGS& options, const ParamGroups& groups);

  bool needs_closure() const override { return true; }
  // Up to max_iter iterations. A parameter without gradient is taken to have a zero one.
  at::Tensor step_with(const std::function<at::Tensor()>& closure) override;
  // Throws: a step needs the closure.
  void step(const at::Tensor& grad_scale, const at::Tensor& found_inf) override;
  void begin() override;
  void end() override;

  std::size_t group_count() const override { return 1; }
  std::vector<std::string> names() const override { return {"lr"}; }
  bool has(std::size_t group, const std::string& name) const override { return group == 0 && name == "lr"; }
  double get(std::size_t group, const std::string& name) const override;
  void set(std::size_t group, const std::string& name, double value) override;
  void set_schedule(const std::string& name, Curve curve) override;
  void clear_schedule(const std::string& name) override;
  int64_t applied() const override { return applied_; }
  const at::Tensor& applied_steps() const override { return applied_steps_; }

  void append_key(std::vector<int64_t>& /*key*/) const override {}
  NamedTensors mutable_state() const override;
  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

 private:
  using Closure = std::function<at::Tensor()>;
  // How the gradient changed over one step, for the approximated Hessian.
  struct Correction {
    at::Tensor gradient_change, step;
    double ro = 0;  // 1 / (gradient_change * step)
  };
  // What torch's state_dict holds too.
  struct Memory {
    int64_t iterations = 0;
    int64_t evaluations = 0;
    at::Tensor direction, previous_gradient;  // undefined before the first iteration
    double t = 0;                             // length of the last step
    double h_diag = 1;
    double previous_loss = 0;
    std::deque<Correction> corrections;
  };
  // Loss and flat gradient at the present parameters.
  struct Evaluation {
    double loss = 0;
    at::Tensor gradient;
    bool converged = false;
  };

  Evaluation evaluate(const Closure& closure, at::Tensor* loss = nullptr) const;
  at::Tensor flat_gradient() const;
  void move(double step, const at::Tensor& direction) const;
  double rounded(double value) const;
  double first_step(const at::Tensor& gradient) const;
  bool iterate(const Closure& closure, Evaluation& at, bool is_last, int64_t& evaluations);
  void find_direction(const at::Tensor& gradient);
  void remember(const at::Tensor& gradient);
  Evaluation search_line(const Closure& closure, const Evaluation& at, double slope, int64_t& evaluations);
  Memory loaded_memory(const StateDict& state) const;
  void check_name(std::size_t group, const std::string& name) const;

  LBFGS options_;
  int64_t max_eval_;
  NamedTensors parameters_;
  Memory memory_;

  double lr_;
  double configured_lr_;    // what it was made with
  Curve lr_curve_;          // empty: lr_ stays
  bool lr_is_set_ = false;  // for the next step, against the curve
  int64_t applied_ = 0;
  at::Tensor applied_steps_;
};

}  // namespace duet
