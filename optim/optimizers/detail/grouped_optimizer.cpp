#include "optim/optimizers/detail/grouped_optimizer.h"
#include <bit>
#include <map>
#include <string>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <c10/util/StringUtil.h>
#include "base/error.h"
#include "optim/detail/device_scalar.h"
#include "optim/optimizers/optimizer_options.h"

namespace duet {

namespace {

void check_parameter(const std::string& name, const at::Tensor& value) {
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

NamedTensors all_parameters(const ParamGroups& groups) {
  NamedTensors all;
  std::map<const void*, std::string> names;
  for (const ParamGroup& group : groups) {
    for (const auto& [name, value] : group.parameters) {
      check_parameter(name, value);
      const auto [known, is_new] = names.emplace(value.unsafeGetTensorImpl(), name);
      if (!is_new) {
        throw ConfigError("[Optimizer] parameter '" + name + "' is the same tensor as '" + known->second +
                          "' in the groups, expected each once; "
                          "leave out one of them, as duet::each_once() does for tied weights");
      }
      all.emplace_back(name, value);
    }
  }
  require<ConfigError>(!all.empty(), "[Optimizer] there is no trainable parameter; expected at least one");
  return all;
}

at::Device device_of(const ParamGroups& groups) { return all_parameters(groups).front().second.device(); }

std::vector<std::map<std::string, double>> numbers_of(const OptimizerKind& kind, const OptimizerOptions& options,
                                                      const ParamGroups& groups) {
  std::vector<std::map<std::string, double>> numbers;
  for (const ParamGroup& group : groups) {
    auto& own = numbers.emplace_back(kind.numbers(options));
    for (const auto& [name, value] : group.numbers) {
      const auto found = own.find(name);
      if (found == own.end()) {
        std::string known;
        for (const auto& entry : own) known += (known.empty() ? "" : ", ") + entry.first;
        throw ConfigError(c10::str("[Optimizer] group '", group.name, "' sets '", name, "', which ", kind.name,
                                   " does not have; expected ", known));
      }
      options.check_number(name, value);
      found->second = value;
    }
  }
  return numbers;
}

}  // namespace

GroupedOptimizer::GroupedOptimizer(const OptimizerKind& kind, const OptimizerOptions& options,
                                   const ParamGroups& groups, bool may_skip)
    : kind_(kind),
      options_(options),
      configured_(numbers_of(kind, options, groups)),
      numbers_(configured_, device_of(groups)),
      slots_(kind.slots(options)),
      may_skip_(may_skip) {
  if (kind.check) kind.check(options, all_parameters(groups));
  const at::NoGradGuard no_grad;
  for (std::size_t group = 0; group < groups.size(); ++group) {
    group_names_.push_back(groups[group].name);
    for (const auto& [name, value] : groups[group].parameters) add(name, value, group);
  }
  const at::TensorOptions on_device = at::TensorOptions().device(parameters_.front().value.device());
  counters_.push_back(at::full({}, 0, on_device.dtype(at::kFloat)));
  started_.push_back(false);
  applied_ = at::full({1}, 0, on_device.dtype(at::kLong));
}

void GroupedOptimizer::add(const std::string& name, const at::Tensor& value, std::size_t group) {
  Parameter parameter{name, value, group, {}, 0};
  const at::TensorOptions options = value.options().requires_grad(false);
  for (const StateSlot& slot : slots_) {
    at::Tensor state;
    if (slot.kept == nullptr || slot.kept(value)) {
      state = slot.shape == StateSlot::Shape::kParameter ? at::full_like(value, slot.initial, options)
                                                         : at::full({}, slot.initial, options.dtype(at::kFloat));
    }
    parameter.state.push_back(state);
  }
  parameters_.push_back(std::move(parameter));
}

void GroupedOptimizer::check_number(std::size_t group, const std::string& name, double value) const {
  numbers_.tensor(group, name);  // throws for a name that is not there
  options_.check_number(name, value);
  if (name == "momentum" && value != 0 && slots_.empty()) {
    throw ConfigError(c10::str("[Optimizer] found momentum = ", value,
                               " for an SGD that was made without momentum and has no "
                               "buffers for it; give SGD::momentum a small value from the start"));
  }
}

void GroupedOptimizer::set(std::size_t group, const std::string& name, double value) {
  check_number(group, name, value);
  numbers_.set(group, name, value);
}

void GroupedOptimizer::set_schedule(const std::string& name, Curve curve) {
  if (!applied_.is_cpu() && kind_.fused && name != "lr") {
    throw ConfigError(c10::str("[Optimizer] found a schedule of ", name, " for ", kind_.name, " on ", applied_.device(),
                               ", where its kernel "
                               "takes only lr from the device; schedule lr alone, or set ",
                               name, " between steps where it changes"));
  }
  const int64_t now = applied();
  for (std::size_t group = 0; group < group_count(); ++group) {
    if (has(group, name)) check_number(group, name, curve(group, now));
  }
  const bool followed = numbers_.has_schedules();
  numbers_.set_schedule(name, [this, name, curve = std::move(curve)](std::size_t group, int64_t at) {
    const double value = curve(group, at);
    check_number(group, name, value);
    return value;
  });
  if (!followed) ++plan_version_;  // a recorded step does not look numbers up yet
}

void GroupedOptimizer::clear_schedule(const std::string& name) {
  numbers_.clear_schedule(name);
  ++plan_version_;
}

int64_t GroupedOptimizer::applied() const {
  return may_skip_ ? static_cast<int64_t>(read_device_scalar(applied_)) : applied_host_;
}

void GroupedOptimizer::begin() {
  // The host counts for the device where it can; otherwise the step does, once it knows whether it applies.
  if (!may_skip_) write_device_scalar(applied_, static_cast<double>(applied_host_ + 1));
  numbers_.begin([this] { return applied(); }, /*counted=*/!may_skip_);
}

void GroupedOptimizer::end() {
  numbers_.end();
  ++applied_host_;
}

// On the CPU the kernels read every number when they run; CUDA's fused ones take all but lr from the host.
void GroupedOptimizer::append_key(std::vector<int64_t>& key) const {
  key.push_back(plan_version_);
  if (applied_.is_cpu() || !kind_.fused) return;
  for (std::size_t group = 0; group < group_count(); ++group) {
    for (const std::string& name : names()) {
      if (name != "lr" && has(group, name)) key.push_back(std::bit_cast<int64_t>(get(group, name)));
    }
  }
}

NamedTensors GroupedOptimizer::mutable_state() const {
  NamedTensors tensors;
  for (const Parameter& parameter : parameters_) {
    for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
      if (parameter.state[slot].defined())
        tensors.emplace_back(slots_[slot].name + "." + parameter.name, parameter.state[slot]);
    }
  }
  for (std::size_t i = 0; i < counters_.size(); ++i) tensors.emplace_back("step." + std::to_string(i), counters_[i]);
  if (numbers_.has_schedules()) tensors.emplace_back("numbers", numbers_.values());
  if (may_skip_) tensors.emplace_back("applied_steps", applied_);
  return tensors;
}

}  // namespace duet
