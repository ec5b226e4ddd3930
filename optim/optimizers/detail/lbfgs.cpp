#include <algorithm>
#include <ATen/ops/full.h>
#include <c10/util/StringUtil.h>
#include <torch/optim/lbfgs.h>
#include "base/error.h"
#include "optim/optimizers/detail/optimizer.h"

namespace duet {

namespace {

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

// It steps all parameters as one vector.
NamedTensors only_group(const ParamGroups& groups) {
  if (groups.size() != 1 || !groups.front().numbers.empty()) {
    throw ConfigError(c10::str("[LBFGS] found ", groups.size(),
                               " parameter groups with numbers of their own, expected one without: "
                               "it steps all parameters as one vector; leave paramwise settings out"));
  }
  check_parameters(groups.front().parameters);
  return groups.front().parameters;
}

std::vector<at::Tensor> values_of(const NamedTensors& parameters) {
  std::vector<at::Tensor> values;
  for (const auto& parameter : parameters) values.push_back(parameter.second);
  return values;
}

torch::optim::LBFGSOptions torch_options(const LBFGS& options) {
  torch::optim::LBFGSOptions given(options.lr);
  given.max_iter(options.max_iter).max_eval(options.max_eval).history_size(options.history_size);
  given.tolerance_grad(options.tolerance_grad).tolerance_change(options.tolerance_change);
  if (options.line_search_fn != "none") given.line_search_fn(options.line_search_fn);
  return given;
}

using Memory = torch::optim::LBFGSParamState;

// LibTorch's. One step evaluates loss and gradients as often as it needs, at places that depend on the values it finds:
// it reads them on the host, so it runs eager only.
class Lbfgs : public Optimizer {
 public:
  // Throws ConfigError for more than one group, or parameters of more than one dtype or device.
  Lbfgs(const LBFGS& options, const ParamGroups& groups)
      : Optimizer(options, {{{"lr", options.lr}}}, at::kCPU),  // where each step reads it
        parameters_(only_group(groups)),
        torch_(values_of(parameters_), torch_options(options)),
        history_size_(options.history_size),
        applied_steps_(at::full({1}, 0, first().options().dtype(at::kLong).requires_grad(false))) {}

  bool needs_closure() const override { return true; }
  // A parameter without gradient is taken to have a zero one.
  at::Tensor step_with(const std::function<at::Tensor()>& closure) override {
    torch_.param_groups().front().options().set_lr(get(0, "lr"));
    return torch_.step([this, &closure] {
      at::Tensor loss = closure();
      // LibTorch's class takes gradients as rows of numbers.
      for (const auto& parameter : parameters_) {
        at::Tensor& gradient = parameter.second.mutable_grad();
        if (gradient.defined() && !gradient.is_sparse()) gradient = gradient.contiguous();
      }
      return loss;
    });
  }
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
  const at::Tensor& first() const { return parameters_.front().second; }
  Memory memory() const {
    const auto found = torch_.state().find(first().unsafeGetTensorImpl());
    return found == torch_.state().end() ? Memory() : static_cast<const Memory&>(*found->second);
  }
  std::unique_ptr<Memory> loaded_memory(const StateDict& state) const;

  NamedTensors parameters_;
  torch::optim::LBFGS torch_;
  int64_t history_size_;
  int64_t applied_ = 0;
  at::Tensor applied_steps_;
};

}  // namespace

// What a checkpoint keeps: torch's state under "state.", where lists have numbers.

StateDict Lbfgs::state_dict() const {
  const Memory memory = this->memory();
  StateDict state;
  state.set("kind", std::string("LBFGS"));
  state.set("applied_steps", applied_);
  save_numbers(state);
  state.set("state.n_iter", memory.n_iter());
  state.set("state.func_evals", memory.func_evals());
  state.set("state.t", memory.t());
  state.set("state.H_diag", memory.H_diag().defined() ? memory.H_diag().item<double>() : 1.0);
  state.set("state.prev_loss", memory.prev_loss());
  state.set("state.history", static_cast<int64_t>(memory.ro().size()));
  if (memory.d().defined()) {
    state.set("state.d", memory.d());
    state.set("state.prev_flat_grad", memory.prev_flat_grad());
  }
  for (std::size_t i = 0; i < memory.ro().size(); ++i) {
    const std::string index = std::to_string(i);
    state.set("state.old_dirs." + index, memory.old_dirs()[i]);
    state.set("state.old_stps." + index, memory.old_stps()[i]);
    state.set("state.ro." + index, memory.ro()[i].item<double>());
  }
  return state;
}

std::unique_ptr<Memory> Lbfgs::loaded_memory(const StateDict& state) const {
  int64_t numel = 0;
  for (const auto& parameter : parameters_) numel += parameter.second.numel();
  const at::Tensor like = at::full({numel}, 0, first().options().requires_grad(false));
  const auto tensor = [&](const std::string& name) {
    check_state("optimizer." + name, state.tensor(name), like);
    return state.tensor(name).to(like.options(), /*non_blocking=*/false, /*copy=*/true);
  };
  const auto number = [&](const std::string& name) { return at::full({}, state.number(name), like.options()); };
  auto memory = std::make_unique<Memory>();
  memory->n_iter(state.integer("state.n_iter")).func_evals(state.integer("state.func_evals"));
  memory->t(state.number("state.t")).prev_loss(state.number("state.prev_loss")).H_diag(number("state.H_diag"));
  if (memory->n_iter() > 0) memory->d(tensor("state.d")).prev_flat_grad(tensor("state.prev_flat_grad"));
  const int64_t corrections = state.integer("state.history");
  for (int64_t i = std::max<int64_t>(0, corrections - history_size_); i < corrections; ++i) {
    const std::string index = std::to_string(i);
    memory->old_dirs().push_back(tensor("state.old_dirs." + index));
    memory->old_stps().push_back(tensor("state.old_stps." + index));
    memory->ro().push_back(number("state.ro." + index));
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
  torch_.state()[first().unsafeGetTensorImpl()] = loaded_memory(state);
  load_numbers(state);
  applied_ = applied;
  applied_steps_.fill_(applied);
}

std::unique_ptr<Optimizer> make_lbfgs(const LBFGS& options, const ParamGroups& groups) {
  return std::make_unique<Lbfgs>(options, groups);
}

}  // namespace duet
