#include <ATen/core/grad_mode.h>
#include "base/error.h"
#include "optim/detail/device_hyper_parameters.h"
#include "optim/optimizers/detail/grouped_optimizer.h"

// What an optimizer keeps in a checkpoint, by the names of torch.optim's state_dict: state.PARAMETER.exp_avg, ...,
// state.PARAMETER.step and param_groups.GROUP.lr, ...

namespace duet {

namespace {

constexpr const char* kGroup = ".group";  // older checkpoints have none
std::string group_key(const std::string& parameter) { return "state." + parameter + kGroup; }

}  // namespace

// The type and the flags that change what its state means.
std::string GroupedOptimizer::kind_text() const {
  std::string text = kind_.name;
  std::string slots;
  for (const StateSlot& slot : slots_) slots += (slots.empty() ? "" : ", ") + slot.name;
  if (!slots.empty()) text += " with " + slots;
  if (options_.flag("nesterov")) text += ", nesterov";
  if (options_.flag("maximize")) text += ", maximize";
  if (options_.flag("decoupled_weight_decay")) text += ", decoupled weight decay";
  return text;
}

StateDict GroupedOptimizer::state_dict() const {
  StateDict state;
  for_each_state([&](const auto& parameter, const auto& slot, const at::Tensor& tensor) {
    state.set("state." + parameter + "." + slot, tensor);
  });
  for (const Parameter& parameter : parameters_) {
    state.set("state." + parameter.name + ".step", counters_[parameter.counter]);
    state.set(group_key(parameter.name), static_cast<int64_t>(parameter.group));
  }
  state.set("kind", kind_text());
  state.set("applied_steps", applied());
  save_numbers(state);
  return state;
}

void GroupedOptimizer::check_fits(const StateDict& state) const {
  const auto require_fit = [](bool fits, const std::string& found, const std::string& expected) {
    require<CheckpointError>(fits, "[Optimizer] the state has " + found + ", expected " + expected +
                                       "; use the optimizer and parameter groups that it was saved with, or load the "
                                       "weights alone");
  };
  require_fit(state.text("kind") == kind_text(), state.text("kind"), kind_text());
  for (const Parameter& parameter : parameters_) {  // numbers are by group
    const std::string key = group_key(parameter.name), where = "'" + parameter.name + "' in parameter group ";
    const int64_t saved = state.has(key) ? state.integer(key) : static_cast<int64_t>(parameter.group);
    require_fit(saved == static_cast<int64_t>(parameter.group), where + std::to_string(saved),
                where + std::to_string(parameter.group));
  }
  const StateDict own = state_dict();
  for (const auto& [name, value] : own.values()) {
    require_fit(state.has(name) || name.ends_with(kGroup), "no '" + name + "'", "one");
    if (std::holds_alternative<double>(value)) state.number(name);
    if (std::holds_alternative<bool>(value)) state.flag(name);
  }
  require_fit(!state.has(number_key("param_groups", group_count(), "lr")), "more parameter groups",
              std::to_string(group_count()));
  state.integer("applied_steps");
  for (const auto& [name, tensor] : own.tensors()) check_state("optimizer." + name, state.tensor(name), tensor);
  for (const auto& entry : state.tensors()) require_fit(own.has(entry.first), "'" + entry.first + "'", "none");
}

void GroupedOptimizer::load_counters(const StateDict& state) {
  std::map<float, std::size_t> counter_of;
  std::vector<at::Tensor> counters;
  for (Parameter& parameter : parameters_) {
    const at::Tensor& step = state.tensor("state." + parameter.name + ".step");
    const auto [entry, added] = counter_of.try_emplace(step.item<float>(), counters.size());
    if (added) {
      counters.push_back(step.to(counters_.front().options(), /*non_blocking=*/false, /*copy=*/true));
    }
    parameter.counter = entry->second;
  }
  counters_ = std::move(counters);
  applied_host_ = state.integer("applied_steps");
  write_device_scalar(applied_, static_cast<double>(applied_host_));
}

void GroupedOptimizer::load_state_dict(const StateDict& state) {
  check_fits(state);
  const at::NoGradGuard no_grad;
  for_each_state([&](const auto& parameter, const auto& slot, const at::Tensor& tensor) {
    const std::string name = "state." + parameter + "." + slot;
    copy_state("optimizer." + name, state.tensor(name), tensor);
  });
  load_counters(state);
  load_numbers(state);
  planned_.clear();
  ++plan_version_;
}

}  // namespace duet
