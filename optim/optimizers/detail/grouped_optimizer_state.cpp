#include <ATen/core/grad_mode.h>
#include <c10/util/StringUtil.h>
#include "base/detail/concat_text.h"
#include "base/error.h"
#include "base/log.h"
#include "optim/detail/device_hyper_parameters.h"
#include "optim/optimizers/detail/grouped_optimizer.h"

// What an optimizer keeps in a checkpoint, by the names of torch.optim's state_dict: state.PARAMETER.exp_avg, ...,
// state.PARAMETER.step and param_groups.GROUP.lr, ...

namespace duet {

namespace {

// "param_groups.0.lr"
std::string number_key(const char* what, std::size_t group, const std::string& name) {
  return concat_text(what, ".", group, ".", name);
}

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
  for (const Parameter& parameter : parameters_)
    state.set("state." + parameter.name + ".step", counters_[parameter.counter]);
  state.set("kind", kind_text());
  state.set("applied_steps", applied());
  for_each_number([&](std::size_t group, const std::string& name, double configured) {
    state.set(number_key("param_groups", group, name), get(group, name));
    state.set(number_key("configured", group, name), configured);
    state.set(number_key("kept", group, name), numbers_.kept(group, name));
  });
  return state;
}

void GroupedOptimizer::check_fits(const StateDict& state) const {
  if (state.text("kind") != kind_text()) {
    throw CheckpointError("[Optimizer] found the state of " + state.text("kind") + ", expected that of " + kind_text() +
                          "; use the optimizer that it was saved from, or load the weights alone");
  }
  const StateDict own = state_dict();
  for (const auto& entry : own.values()) {
    if (!state.has(entry.first)) {
      throw CheckpointError("[Optimizer] the state has no '" + entry.first +
                            "', expected the same parameter groups; use the "
                            "groups that it was saved with, or load the weights alone");
    }
    if (std::holds_alternative<double>(entry.second)) state.number(entry.first);
    if (std::holds_alternative<bool>(entry.second)) state.flag(entry.first);
  }
  if (state.has(number_key("param_groups", group_count(), "lr"))) {
    throw CheckpointError(c10::str("[Optimizer] the state has more than this optimizer's ", group_count(),
                                   " parameter groups; ",
                                   "use the groups that it was saved with, or load the weights alone"));
  }
  state.integer("applied_steps");
  for (const auto& [name, tensor] : own.tensors()) check_state("optimizer." + name, state.tensor(name), tensor);
  for (const auto& entry : state.tensors()) {
    if (!own.has(entry.first)) {
      throw CheckpointError("[Optimizer] found '" + entry.first +
                            "', which this optimizer does not keep; load the state "
                            "into an optimizer of the type and options that it was saved from");
    }
  }
}

void GroupedOptimizer::warn_of_other_numbers(const StateDict& state) const {
  for_each_number([&](std::size_t group, const std::string& name, double value) {
    const double saved = state.number(number_key("configured", group, name));
    if (saved == value) return;
    const std::string where = group_count() == 1 ? "" : c10::str(" of group ", group, " ", group_names_[group]);
    log_warning(c10::str("[Optimizer] the state was trained with ", name, where, " = ", saved,
                         ", this run is configured with ", value,
                         "; that of the state is used. BaseTrainer::load can take this run's"));
  });
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
  warn_of_other_numbers(state);
  const at::NoGradGuard no_grad;
  for_each_state([&](const auto& parameter, const auto& slot, const at::Tensor& tensor) {
    const std::string name = "state." + parameter + "." + slot;
    copy_state("optimizer." + name, state.tensor(name), tensor);
  });
  load_counters(state);
  // As if it had been made with them: what is saved next says what is used.
  for (std::size_t group = 0; group < group_count(); ++group) {
    for (auto& [name, value] : configured_[group]) value = state.number(number_key("configured", group, name));
  }
  for_each_number([&](std::size_t group, const std::string& name, double) {
    set(group, name, state.number(number_key("param_groups", group, name)));
  });
  numbers_.end();  // these are the numbers as they were; only some were set against a curve
  for_each_number([&](std::size_t group, const std::string& name, double) {
    if (state.flag(number_key("kept", group, name))) numbers_.keep(group, name);
  });
  numbers_.refill();
  planned_.clear();
  ++plan_version_;
}

}  // namespace duet
