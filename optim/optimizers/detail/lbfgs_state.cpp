#include <ATen/core/grad_mode.h>
#include <c10/util/StringUtil.h>
#include "base/error.h"
#include "base/log.h"
#include "optim/optimizers/detail/lbfgs.h"

// The learning rate of an LBFGS, and what it keeps in a checkpoint: torch's state under "state.", where lists have
// numbers.

namespace duet {

void Lbfgs::check_name(std::size_t group, const std::string& name) const {
  if (group != 0) throw ConfigError(c10::str("[LBFGS] found group ", group, ", expected 0: it has one group only"));
  if (name != "lr") throw ConfigError("[LBFGS] there is no hyper-parameter '" + name + "'; this optimizer has lr");
}

double Lbfgs::get(std::size_t group, const std::string& name) const {
  check_name(group, name);
  return lr_;
}

void Lbfgs::set(std::size_t group, const std::string& name, double value) {
  check_name(group, name);
  OptimizerOptions(options_).check_number(name, value);
  lr_ = value;
  lr_is_set_ = true;
}

void Lbfgs::set_schedule(const std::string& name, Curve curve) {
  check_name(0, name);
  OptimizerOptions(options_).check_number(name, curve(0, applied_));
  lr_curve_ = std::move(curve);
  lr_is_set_ = false;
}

void Lbfgs::clear_schedule(const std::string& name) {
  check_name(0, name);
  lr_curve_ = nullptr;
}

void Lbfgs::begin() {
  if (lr_curve_ && !lr_is_set_) lr_ = lr_curve_(0, applied_);
}

void Lbfgs::end() {
  lr_is_set_ = false;
  ++applied_;
  applied_steps_.fill_(applied_);
}

NamedTensors Lbfgs::mutable_state() const {
  const StateDict state = state_dict();
  return {state.tensors().begin(), state.tensors().end()};
}

StateDict Lbfgs::state_dict() const {
  StateDict state;
  state.set("kind", std::string("LBFGS"));
  state.set("applied_steps", applied_);
  state.set("param_groups.0.lr", lr_);
  state.set("configured.0.lr", configured_lr_);
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
  const double saved = state.number("configured.0.lr");
  const double lr = state.number("param_groups.0.lr");
  memory_ = loaded_memory(state);
  if (saved != configured_lr_) {
    log_warning(c10::str("[LBFGS] the state was trained with lr = ", saved, ", this run is configured with ",
                         configured_lr_,
                         "; that of the state is used. Load the weights alone to start with other numbers"));
  }
  applied_ = applied;
  applied_steps_.fill_(applied);
  lr_ = lr;
  lr_is_set_ = false;
}

}  // namespace duet
