#include <cmath>
#include <deque>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/dot.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>
#include "base/error.h"
#include "optim/optimizers/detail/line_search.h"
#include "optim/optimizers/detail/numbered_optimizer.h"

namespace duet {

namespace {

double inner_product(const at::Tensor& a, const at::Tensor& b) { return at::dot(a, b).item<double>(); }
double largest(const at::Tensor& tensor) { return tensor.abs().max().item<double>(); }

void check_parameters(const NamedTensors& parameters) {
  require<ConfigError>(!parameters.empty(), "[LBFGS] there is no trainable parameter; expected at least one");
  const auto& [first_name, first] = parameters.front();
  for (const auto& [name, value] : parameters) {
    if (value.scalar_type() == first.scalar_type() && value.device() == first.device()) continue;
    throw ConfigError(c10::str("[LBFGS] parameter '", name, "' is ", value.scalar_type(), " on ", value.device(),
                               ", but '", first_name, "' is ", first.scalar_type(), " on ", first.device(),
                               "; expected one dtype and one device for all"));
  }
}

// The method of torch.optim.LBFGS. One step evaluates loss and gradients up to max_eval times, at places that depend on
// the values it finds: it reads them on the host, so it runs eager only.
class Lbfgs : public NumberedOptimizer {
 public:
  // Throws ConfigError for more than one group, or parameters of more than one dtype or device.
  Lbfgs(const LBFGS& options, const ParamGroups& groups);

  bool needs_closure() const override { return true; }
  // Up to max_iter iterations. A parameter without gradient is taken to have a zero one.
  at::Tensor step_with(const std::function<at::Tensor()>& closure) override;
  // Throws: a step needs the closure.
  void step(const at::Tensor& /*grad_scale*/, const at::Tensor& /*found_inf*/) override {
    throw ConfigError(
        "[LBFGS] found a step without closure, expected step_with(closure): one step evaluates the loss several "
        "times. Use EagerTrainer without gradient scaling, or another optimizer");
  }
  void begin() override {
    numbers_.begin([this] { return applied_; });
    numbers_.advance(at::full({1}, applied_, at::kLong));
  }
  void end() override {
    numbers_.end();
    ++applied_;
    applied_steps_.fill_(applied_);
  }

  int64_t applied() const override { return applied_; }
  const at::Tensor& applied_steps() const override { return applied_steps_; }

  void append_key(std::vector<int64_t>& /*key*/) const override {}
  NamedTensors mutable_state() const override {
    const StateDict state = state_dict();
    return {state.tensors().begin(), state.tensors().end()};
  }
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
  // torch keeps most of its scalars as 0-dim tensors of the parameters' dtype: float32 numbers round after every
  // operation.
  double rounded(double value) const {
    return parameters_.front().second.scalar_type() == at::kDouble ? value : static_cast<float>(value);
  }
  // The first direction is the gradient itself, whose length says nothing about how far to go.
  double first_step(const at::Tensor& gradient) const {
    const double share = rounded(1 / gradient.abs().sum().item<double>());
    return share < 1 ? rounded(share * rounded(lr())) : lr();
  }
  bool iterate(const Closure& closure, Evaluation& at, bool is_last, int64_t& evaluations);
  void find_direction(const at::Tensor& gradient);
  void remember(const at::Tensor& gradient);
  Evaluation search_line(const Closure& closure, const Evaluation& at, double slope, int64_t& evaluations);
  Memory loaded_memory(const StateDict& state) const;
  double lr() const { return get(0, "lr"); }

  LBFGS limits_;
  int64_t max_eval_;
  NamedTensors parameters_;
  Memory memory_;

  int64_t applied_ = 0;
  at::Tensor applied_steps_;
};

}  // namespace

Lbfgs::Lbfgs(const LBFGS& options, const ParamGroups& groups)
    : NumberedOptimizer(options, {{{"lr", options.lr}}}, at::kCPU),  // where each step reads it
      limits_(options),
      max_eval_(options.max_eval.value_or(options.max_iter * 5 / 4)) {
  if (groups.size() != 1 || !groups.front().numbers.empty()) {
    throw ConfigError(c10::str("[LBFGS] found ", groups.size(),
                               " parameter groups with numbers of their own, expected one without: "
                               "it steps all parameters as one vector; leave paramwise settings out"));
  }
  parameters_ = groups.front().parameters;
  check_parameters(parameters_);
  applied_steps_ = at::full({1}, 0, at::TensorOptions().dtype(at::kLong).device(parameters_.front().second.device()));
}

at::Tensor Lbfgs::flat_gradient() const {
  std::vector<at::Tensor> parts;
  for (const auto& entry : parameters_) {
    const at::Tensor& gradient = entry.second.grad();
    parts.push_back(gradient.defined()
                        ? gradient.reshape(-1)
                        : at::zeros({entry.second.numel()}, entry.second.options().requires_grad(false)));
  }
  return at::cat(parts);
}

void Lbfgs::move(double step, const at::Tensor& direction) const {
  int64_t offset = 0;
  for (const auto& entry : parameters_) {
    const at::Tensor& parameter = entry.second;
    parameter.add_(direction.slice(0, offset, offset + parameter.numel()).view(parameter.sizes()), step);
    offset += parameter.numel();
  }
}

Lbfgs::Evaluation Lbfgs::evaluate(const Closure& closure, at::Tensor* loss) const {
  at::Tensor value;
  {
    const at::AutoGradMode with_gradients(true);
    value = closure();
  }
  Evaluation result{value.item<double>(), flat_gradient()};
  result.converged = largest(result.gradient) <= limits_.tolerance_grad;
  if (loss != nullptr) *loss = value;
  return result;
}

at::Tensor Lbfgs::step_with(const Closure& closure) {
  const at::NoGradGuard no_grad;
  at::Tensor first_loss;
  Evaluation at = evaluate(closure, &first_loss);
  int64_t evaluations = 1;
  bool go_on = !at.converged;
  for (int64_t i = 1; go_on && i <= limits_.max_iter; ++i) {
    go_on = iterate(closure, at, i == limits_.max_iter, evaluations);
  }
  memory_.evaluations += evaluations;
  return first_loss;
}

// One iteration, from and to the evaluated place `at`. False: it was the last one of this step.
bool Lbfgs::iterate(const Closure& closure, Evaluation& at, bool is_last, int64_t& evaluations) {
  ++memory_.iterations;
  find_direction(at.gradient);
  memory_.previous_gradient = at.gradient.clone();
  memory_.previous_loss = at.loss;
  memory_.t = memory_.iterations == 1 ? first_step(at.gradient) : lr();
  const double slope = inner_product(at.gradient, memory_.direction);
  if (slope > -limits_.tolerance_change) return false;

  if (limits_.line_search_fn == "strong_wolfe") {
    at = search_line(closure, at, slope, evaluations);
  } else {
    move(memory_.t, memory_.direction);
    if (is_last) return false;  // the next step evaluates here, perhaps on other data
    at = evaluate(closure);
    ++evaluations;
  }
  return !is_last && evaluations < max_eval_ && !at.converged &&
         largest(memory_.direction * memory_.t) > limits_.tolerance_change &&
         std::abs(at.loss - memory_.previous_loss) >= limits_.tolerance_change;
}

// Adds how the gradient changed over the last step. What would not keep the approximated Hessian positive is left out.
void Lbfgs::remember(const at::Tensor& gradient) {
  Correction correction{gradient - memory_.previous_gradient, memory_.direction * memory_.t};
  const double curvature = inner_product(correction.gradient_change, correction.step);
  if (!(curvature > 1e-10)) return;
  correction.ro = rounded(1 / curvature);
  memory_.h_diag = rounded(curvature / inner_product(correction.gradient_change, correction.gradient_change));
  memory_.corrections.push_back(std::move(correction));
  if (static_cast<int64_t>(memory_.corrections.size()) > limits_.history_size) memory_.corrections.pop_front();
}

// Minus the gradient times the approximated inverse Hessian, by the two loops over the history.
void Lbfgs::find_direction(const at::Tensor& gradient) {
  if (memory_.iterations == 1) {
    memory_.direction = gradient.neg();
    return;
  }
  remember(gradient);
  const auto& corrections = memory_.corrections;
  at::Tensor direction = gradient.neg();
  std::vector<double> al(corrections.size());
  for (std::size_t i = corrections.size(); i-- > 0;) {
    al[i] = rounded(inner_product(corrections[i].step, direction) * corrections[i].ro);
    direction.add_(corrections[i].gradient_change, -al[i]);
  }
  direction.mul_(memory_.h_diag);
  for (std::size_t i = 0; i < corrections.size(); ++i) {
    const double be = rounded(inner_product(corrections[i].gradient_change, direction) * corrections[i].ro);
    direction.add_(corrections[i].step, rounded(al[i] - be));
  }
  memory_.direction = direction;
}

Lbfgs::Evaluation Lbfgs::search_line(const Closure& closure, const Evaluation& at, double slope, int64_t& evaluations) {
  std::vector<at::Tensor> start;
  for (const auto& entry : parameters_) start.push_back(entry.second.clone());
  const auto evaluate_at = [&](double step) {
    move(step, memory_.direction);
    const Evaluation there = evaluate(closure);
    for (std::size_t i = 0; i < start.size(); ++i) parameters_[i].second.copy_(start[i]);
    return LinePoint{rounded(step), there.loss, there.gradient, inner_product(there.gradient, memory_.direction)};
  };
  const LineSearch search{evaluate_at, largest(memory_.direction), limits_.tolerance_change, max_eval_ - evaluations};
  const LineSearchResult found = strong_wolfe(search, {0, at.loss, at.gradient, slope}, memory_.t);
  memory_.t = rounded(found.point.step);
  move(memory_.t, memory_.direction);
  evaluations += found.evaluations;
  return {found.point.loss, found.point.gradient, largest(found.point.gradient) <= limits_.tolerance_grad};
}

// What a checkpoint keeps: torch's state under "state.", where lists have numbers.

StateDict Lbfgs::state_dict() const {
  StateDict state;
  state.set("kind", std::string("LBFGS"));
  state.set("applied_steps", applied_);
  save_numbers(state);
  state.set("state.n_iter", memory_.iterations);
  state.set("state.func_evals", memory_.evaluations);
  state.set("state.t", memory_.t);
  state.set("state.H_diag", memory_.h_diag);
  state.set("state.prev_loss", memory_.previous_loss);
  state.set("state.history", static_cast<int64_t>(memory_.corrections.size()));
  if (memory_.direction.defined()) {
    state.set("state.d", memory_.direction);
    state.set("state.prev_flat_grad", memory_.previous_gradient);
  }
  for (std::size_t i = 0; i < memory_.corrections.size(); ++i) {
    const std::string index = std::to_string(i);
    state.set("state.old_dirs." + index, memory_.corrections[i].gradient_change);
    state.set("state.old_stps." + index, memory_.corrections[i].step);
    state.set("state.ro." + index, memory_.corrections[i].ro);
  }
  return state;
}

Lbfgs::Memory Lbfgs::loaded_memory(const StateDict& state) const {
  const at::NoGradGuard no_grad;
  const at::Tensor like = flat_gradient();
  const auto tensor = [&](const std::string& name) {
    check_state("optimizer." + name, state.tensor(name), like);
    return state.tensor(name).to(like.options(), /*non_blocking=*/false, /*copy=*/true);
  };
  Memory memory;
  memory.iterations = state.integer("state.n_iter");
  memory.evaluations = state.integer("state.func_evals");
  memory.t = state.number("state.t");
  memory.h_diag = state.number("state.H_diag");
  memory.previous_loss = state.number("state.prev_loss");
  if (memory.iterations > 0) {
    memory.direction = tensor("state.d");
    memory.previous_gradient = tensor("state.prev_flat_grad");
  }
  const int64_t corrections = state.integer("state.history");
  for (int64_t i = 0; i < corrections; ++i) {
    const std::string index = std::to_string(i);
    memory.corrections.push_back(
        {tensor("state.old_dirs." + index), tensor("state.old_stps." + index), state.number("state.ro." + index)});
  }
  return memory;
}

void Lbfgs::load_state_dict(const StateDict& state) {
  if (state.text("kind") != "LBFGS") {
    throw CheckpointError("[LBFGS] found the state of " + state.text("kind") +
                          ", expected that of LBFGS; use the optimizer that "
                          "it was saved from, or load the weights alone");
  }
  const int64_t applied = state.integer("applied_steps");
  for (const char* key : {"configured", "param_groups"}) state.number(number_key(key, 0, "lr"));  // before any change
  memory_ = loaded_memory(state);
  load_numbers(state);
  applied_ = applied;
  applied_steps_.fill_(applied);
}

std::unique_ptr<Optimizer> make_lbfgs(const LBFGS& options, const ParamGroups& groups) {
  return std::make_unique<Lbfgs>(options, groups);
}

}  // namespace duet
