#include <duet/optim/fused_optimizer.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/StringUtil.h>
#include <duet/core/error.h>
#include <duet/core/log.h>
#include <duet/optim/device_scalar.h>

#include <algorithm>
#include <bit>

namespace duet {

FusedOptimizer::FusedOptimizer(std::string kind, const NamedTensors& parameters, std::map<std::string, double> numbers,
                               std::vector<std::string> slots, bool counts_steps)
    : kind_(std::move(kind)), configured_(numbers), slots_(std::move(slots)), counts_steps_(counts_steps) {
  check(parameters);
  const at::NoGradGuard no_grad;
  const at::Device device = parameters.front().second.device();
  Group group;
  group.lr = make_device_scalar(numbers.at("lr"), learning_rate_dtype(device), device);
  group.numbers = std::move(numbers);
  for (const auto& [name, value] : parameters) {
    group.members.push_back(parameters_.size());
    Parameter parameter{name, value, {}, 0};
    for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
      parameter.state.push_back(at::zeros_like(value, value.options().requires_grad(false)));
    }
    parameters_.push_back(std::move(parameter));
  }
  groups_.push_back(std::move(group));
  counters_.push_back(make_device_scalar(0, at::kFloat, device));
  started_.push_back(false);
}

void FusedOptimizer::check(const NamedTensors& parameters) const {
  require<ConfigError>(!parameters.empty(), "[Optimizer] there is no trainable parameter; expected at least one");
  for (const auto& [name, value] : parameters) {
    if (!value.is_floating_point()) {
      throw ConfigError(c10::str("[Optimizer] parameter '", name, "' is ", value.scalar_type(),
                                 ", expected a floating-point dtype; freeze it with requires_grad_(false)"));
    }
    // The fused kernels walk memory: parameter, gradient and state must share one dense layout.
    if (!value.is_non_overlapping_and_dense()) {
      throw ConfigError(c10::str("[Optimizer] parameter '", name, "' has strides ", value.strides(), " for sizes ",
                                 value.sizes(), ", expected dense memory; make it contiguous()"));
    }
  }
}

std::vector<std::string> FusedOptimizer::names() const {
  std::vector<std::string> names;
  for (const auto& entry : groups_.front().numbers) names.push_back(entry.first);
  return names;
}

const double& FusedOptimizer::number(std::size_t group, const std::string& name) const {
  if (group >= groups_.size()) {
    throw ConfigError(c10::str("[Optimizer] found group ", group, ", expected one below ", groups_.size()));
  }
  const auto& numbers = groups_[group].numbers;
  const auto found = numbers.find(name);
  if (found == numbers.end()) {
    std::string known;
    for (const auto& entry : numbers) known += (known.empty() ? "" : ", ") + entry.first;
    throw ConfigError(c10::str("[Optimizer] there is no hyper-parameter '", name, "'; this optimizer has ", known));
  }
  return found->second;
}

double FusedOptimizer::get(std::size_t group, const std::string& name) const { return number(group, name); }

void FusedOptimizer::set(std::size_t group, const std::string& name, double value) {
  double& slot = const_cast<double&>(number(group, name));
  if (slot == value) return;
  slot = value;
  if (name == "lr") write_device_scalar(groups_[group].lr, value);
}

void FusedOptimizer::append_key(std::vector<int64_t>& key) const {
  key.push_back(plan_version_);
  for (const Group& group : groups_) {
    for (const auto& [name, value] : group.numbers) {
      if (name != "lr") key.push_back(std::bit_cast<int64_t>(value));
    }
  }
}

// A parameter without a gradient is left alone and its step does not count, as in torch.optim. Parameters that part ways
// then need counters of their own.
void FusedOptimizer::split_counters(const std::vector<bool>& has_gradient) {
  const std::size_t count = counters_.size();
  for (std::size_t counter = 0; counter < count; ++counter) {
    std::vector<Parameter*> stepped;
    bool all = true;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      if (parameters_[i].counter != counter) continue;
      if (has_gradient[i]) stepped.push_back(&parameters_[i]);
      all = all && has_gradient[i];
    }
    if (all || stepped.empty()) continue;
    for (Parameter* parameter : stepped) parameter->counter = counters_.size();
    counters_.push_back(counters_[counter].clone());
    started_.push_back(started_[counter]);
    ++plan_version_;  // a recorded step counts with the old counters
  }
}

void FusedOptimizer::refresh_plan(const std::vector<bool>& has_gradient) {
  split_counters(has_gradient);
  calls_.clear();
  call_members_.clear();
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    for (std::size_t counter = 0; counter < counters_.size(); ++counter) {
      Call call;
      std::vector<std::size_t> members;
      call.state.resize(slots_.size());
      call.first = !started_[counter];
      for (const std::size_t i : groups_[g].members) {
        const Parameter& parameter = parameters_[i];
        if (parameter.counter != counter || !has_gradient[i]) continue;
        members.push_back(i);
        call.parameters.push_back(parameter.value);
        call.steps.push_back(counters_[counter]);
        for (std::size_t slot = 0; slot < slots_.size(); ++slot) call.state[slot].push_back(parameter.state[slot]);
      }
      if (members.empty()) continue;
      call.gradients.resize(members.size());
      calls_.emplace_back(g, std::move(call));
      call_members_.push_back(std::move(members));
    }
  }
  planned_ = has_gradient;
}

namespace {

// The gradient in the layout of its parameter; autograd gives it so, a user's own gradient may differ.
at::Tensor laid_out_like(const at::Tensor& parameter, const at::Tensor& gradient) {
  if (gradient.strides() == parameter.strides()) return gradient;
  at::Tensor copy = at::empty_like(parameter, parameter.options().requires_grad(false));
  return copy.copy_(gradient);
}

}  // namespace

void FusedOptimizer::step(const at::Tensor& grad_scale) {
  const at::NoGradGuard no_grad;
  std::vector<bool> has_gradient(parameters_.size());
  for (std::size_t i = 0; i < parameters_.size(); ++i) has_gradient[i] = parameters_[i].value.grad().defined();
  if (has_gradient != planned_) refresh_plan(has_gradient);

  std::vector<bool> stepped(counters_.size(), false);
  for (std::size_t c = 0; c < calls_.size(); ++c) {
    auto& [group, call] = calls_[c];
    const std::size_t counter = parameters_[call_members_[c].front()].counter;
    for (std::size_t m = 0; m < call_members_[c].size(); ++m) {
      const at::Tensor& parameter = call.parameters[m];
      call.gradients[m] = laid_out_like(parameter, parameter.grad());
    }
    if (counts_steps_ && !stepped[counter]) counters_[counter].add_(1);
    stepped[counter] = true;
    run_kernel(groups_[group], call, grad_scale);
    // Keeping the gradients would make autograd copy the next ones instead of handing them over.
    std::fill(call.gradients.begin(), call.gradients.end(), at::Tensor());
  }
  if (std::any_of(calls_.begin(), calls_.end(), [](const auto& entry) { return entry.second.first; })) {
    for (auto& [group, call] : calls_) call.first = false;
    for (std::size_t counter = 0; counter < stepped.size(); ++counter) {
      started_[counter] = started_[counter] || stepped[counter];
    }
    if (!counts_steps_ && !slots_.empty()) ++plan_version_;  // the first step of SGD's kernel differs from later ones
  }
}

NamedTensors FusedOptimizer::mutable_state() const {
  NamedTensors tensors;
  for (const Parameter& parameter : parameters_) {
    for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
      tensors.emplace_back(slots_[slot] + "." + parameter.name, parameter.state[slot]);
    }
  }
  for (std::size_t i = 0; i < counters_.size(); ++i) tensors.emplace_back("step." + std::to_string(i), counters_[i]);
  return tensors;
}

StateDict FusedOptimizer::state_dict() const {
  StateDict state;
  for (const Parameter& parameter : parameters_) {
    for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
      state.set(slots_[slot] + "." + parameter.name, parameter.state[slot]);
    }
    state.set("step." + parameter.name, counters_[parameter.counter]);
    state.set("started." + parameter.name, bool{started_[parameter.counter]});
  }
  state.set("kind", kind_);
  for (const auto& [name, value] : configured_) state.set("configured." + name, value);
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    for (const auto& [name, value] : groups_[g].numbers) state.set("group." + std::to_string(g) + "." + name, value);
  }
  return state;
}

void FusedOptimizer::check_fits(const StateDict& state) const {
  if (state.text("kind") != kind_) {
    throw CheckpointError("[Optimizer] found the state of " + state.text("kind") + ", expected that of " + kind_ +
                          "; use the optimizer that it was saved from, or load the weights alone");
  }
  const StateDict own = state_dict();
  for (const auto& entry : own.values()) {
    if (std::holds_alternative<bool>(entry.second)) {
      state.flag(entry.first);
    } else if (std::holds_alternative<double>(entry.second)) {
      state.number(entry.first);
    }
  }
  for (const auto& [name, tensor] : own.tensors()) check_state("optimizer." + name, state.tensor(name), tensor);
  for (const auto& entry : state.tensors()) {
    if (!own.has(entry.first)) {
      throw CheckpointError("[Optimizer] found '" + entry.first + "', which this optimizer does not keep; load the state "
                            "into an optimizer of the type and options that it was saved from");
    }
  }
}

void FusedOptimizer::warn_of_other_numbers(const StateDict& state) const {
  for (const auto& [name, value] : configured_) {
    const double saved = state.number("configured." + name);
    if (saved == value) continue;
    log_warning(c10::str("[Optimizer] the state was trained with ", name, " = ", saved, ", this run is configured with ", value,
                         "; that of the state is used. Load the weights alone to start with other numbers"));
  }
}

void FusedOptimizer::load_state_dict(const StateDict& state) {
  check_fits(state);
  warn_of_other_numbers(state);
  const at::NoGradGuard no_grad;
  std::map<std::pair<float, bool>, std::size_t> counter_of;
  std::vector<at::Tensor> counters;
  std::vector<bool> started;
  for (Parameter& parameter : parameters_) {
    for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
      const std::string name = slots_[slot] + "." + parameter.name;
      copy_state("optimizer." + name, state.tensor(name), parameter.state[slot]);
    }
    const at::Tensor& step = state.tensor("step." + parameter.name);
    const bool begun = state.flag("started." + parameter.name);
    const auto [entry, added] = counter_of.try_emplace({step.item<float>(), begun}, counters.size());
    if (added) {
      counters.push_back(step.to(counters_.front().options(), /*non_blocking=*/false, /*copy=*/true));
      started.push_back(begun);
    }
    parameter.counter = entry->second;
  }
  counters_ = std::move(counters);
  started_ = std::move(started);
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    for (const std::string& name : names()) set(g, name, state.number("group." + std::to_string(g) + "." + name));
  }
  planned_.clear();
  ++plan_version_;
}

}  // namespace duet
