#include "optim/optimizers/detail/grouped_optimizer.h"
#include <algorithm>
#include <bit>
#include <iterator>
#include <map>
#include <tuple>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/where.h>
#include <c10/util/StringUtil.h>
#include "base/error.h"
#include "base/log.h"
#include "optim/detail/device_hyper_parameters.h"
#include "optim/optimizers/optimizer_options.h"

namespace duet {

namespace {

void check_parameter(const std::string& name, const at::Tensor& parameter) {
  if (!parameter.is_floating_point()) {
    throw ConfigError(c10::str("[Optimizer] parameter '", name, "' is ", parameter.scalar_type(),
                               ", expected a floating-point dtype; freeze it with requires_grad_(false)"));
  }
  if (!parameter.is_non_overlapping_and_dense()) {
    throw ConfigError(c10::str("[Optimizer] parameter '", name, "' has strides ", parameter.strides(), " for sizes ",
                               parameter.sizes(), ", expected dense memory; make it contiguous()"));
  }
}

void check_gradient(const std::string& name, const at::Tensor& parameter, const at::Tensor& gradient) {
  if (gradient.sizes() == parameter.sizes() && gradient.scalar_type() == parameter.scalar_type()) return;
  throw ConfigError(c10::str("[Optimizer] the gradient of '", name, "' is ", gradient.scalar_type(), gradient.sizes(),
                             ", expected ", parameter.scalar_type(), parameter.sizes(),
                             " as the parameter is; give it that shape and dtype where a hook sets it"));
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
                          "leave out one of them");
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
      if (own.count(name) != 0) own[name] = value;  // else the constructor refuses it
    }
  }
  return numbers;
}

}  // namespace

GroupedOptimizer::GroupedOptimizer(const OptimizerKind& kind, const OptimizerOptions& options,
                                   const ParamGroups& groups, bool may_skip)
    : Optimizer(options, numbers_of(kind, options, groups), device_of(groups)),
      kind_(kind),
      slots_(kind.slots(options)),
      may_skip_(may_skip),
      fused_(kind.fused) {
  if (kind.check) kind.check(options, all_parameters(groups));
  const at::NoGradGuard no_grad;
  for (std::size_t group = 0; group < groups.size(); ++group) {
    for (const auto& [name, value] : groups[group].parameters) add(name, value, group);
    try {
      for (const auto& [name, value] : groups[group].numbers) check_number(group, name, value);
    } catch (const ConfigError& error) {
      throw ConfigError(c10::str(error.what(), " (group '", groups[group].name, "')"));
    }
  }
  const at::TensorOptions on_device = at::TensorOptions().device(parameters_.front().value.device());
  counters_.push_back(at::full({}, 0, on_device.dtype(at::kFloat)));
  applied_ = at::full({1}, 0, on_device.dtype(at::kLong));
}

namespace {

at::Tensor first_state(const StateSlot& slot, const at::Tensor& parameter) {
  using Shape = StateSlot::Shape;
  const at::TensorOptions options = parameter.options().requires_grad(false);
  if (slot.shape == Shape::kParameter) return at::full_like(parameter, slot.initial, options);
  if (slot.shape == Shape::kScalar) return at::full({}, slot.initial, options.dtype(at::kFloat));
  std::vector<int64_t> sizes = parameter.sizes().vec();
  sizes.at(sizes.size() - (slot.shape == Shape::kRows ? 1 : 2)) = 1;
  return at::full(sizes, slot.initial, options);
}

}  // namespace

void GroupedOptimizer::add(const std::string& name, const at::Tensor& value, std::size_t group) {
  Parameter parameter{name, value, TensorLayout(value), group};
  for (const StateSlot& slot : slots_) {
    const bool kept = slot.kept == nullptr || slot.kept(value);
    parameter.state.push_back(kept ? first_state(slot, value) : at::Tensor());
  }
  parameters_.push_back(std::move(parameter));
}

// A model may be changed between steps (set_data(), to()), and in the first one (a layer that learns its sizes there).
void GroupedOptimizer::follow_layouts() {
  for (Parameter& parameter : parameters_) {
    if (!parameter.layout.is_of(parameter.value)) follow_layout(parameter);
  }
}

void GroupedOptimizer::follow_layout(Parameter& parameter) {
  const at::Tensor& value = parameter.value;
  check_parameter(parameter.name, value);
  const bool has_state = std::any_of(parameter.state.begin(), parameter.state.end(),
                                     [](const at::Tensor& state) { return state.defined(); });
  const TensorLayout& made = parameter.layout;
  if (has_state && !made.has_shape_of(value)) {
    throw ConfigError(c10::str("[Optimizer] parameter '", parameter.name, "' is ", value.scalar_type(), value.sizes(),
                               ", expected ", made.dtype, at::IntArrayRef(made.sizes),
                               " as when the trainer was made, ",
                               "since its state has that shape and dtype; change a model before the trainer is made"));
  }
  for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
    at::Tensor& state = parameter.state[slot];
    if (!state.defined() || slots_[slot].shape != StateSlot::Shape::kParameter) continue;
    state.set_data(at::empty_like(value, state.options()).copy_(state));
  }
  parameter.layout = TensorLayout(value);
  planned_.clear();  // calls are of one dtype
  ++plan_version_;
}

void GroupedOptimizer::check_number(std::size_t group, const std::string& name, double value) const {
  Optimizer::check_number(group, name, value);
  if (name == "momentum" && value != 0 && slots_.empty()) {
    throw ConfigError(c10::str("[Optimizer] found momentum = ", value,
                               " for an SGD that was made without momentum and has no "
                               "buffers for it; give SGD::momentum a small value from the start"));
  }
}

void GroupedOptimizer::set_schedule(const std::string& name, Curve curve) {
  if (!applied_.is_cpu() && kind_.fused && !kind_.unfused && name != "lr") {
    throw ConfigError(c10::str("[Optimizer] found a schedule of ", name, " for ", kind_.name, " on ", applied_.device(),
                               ", where fused kernels take only lr from the device; give its OptimizerKind::unfused, ",
                               "schedule lr alone, or set ", name, " between steps where it changes"));
  }
  const bool followed = numbers_.has_schedules();
  Optimizer::set_schedule(name, std::move(curve));
  if (!followed) ++plan_version_;  // a recorded step does not look numbers up yet
}

void GroupedOptimizer::clear_schedule(const std::string& name) {
  Optimizer::clear_schedule(name);
  ++plan_version_;
}

int64_t GroupedOptimizer::applied() const {
  return may_skip_ ? static_cast<int64_t>(read_device_scalar(applied_)) : applied_host_;
}

void GroupedOptimizer::begin() {
  follow_layouts();
  // The host counts for the device where it can; otherwise the step does, once it knows whether it applies.
  if (!may_skip_) write_device_scalar(applied_, static_cast<double>(applied_host_ + 1));
  numbers_.begin([this] { return applied(); }, /*counted=*/!may_skip_);
  choose_kernel();
}

void GroupedOptimizer::end() {
  numbers_.end();
  ++applied_host_;
}

// On the CPU fused kernels read every number when they run. CUDA's take all but lr from the host, and from the host
// SGD's gets a flag for the first step, which is undamped: only the device knows which numbers a schedule gives
// and whether the step before was skipped.
bool GroupedOptimizer::can_be_fused() const {
  if (applied_.is_cpu() || !kind_.unfused) return kind_.fused;
  if (numbers_.has_schedules_besides("lr")) return false;
  for (std::size_t group = 0; group < group_count(); ++group) {
    if (has(group, "dampening") && numbers_.at_begin(group, "dampening") != 0) return false;
  }
  return true;
}

void GroupedOptimizer::choose_kernel() {
  const bool fused = can_be_fused();
  if (fused_ && !fused) {
    log_info(c10::str("[Optimizer] ", kind_.name, " steps by tensor operators on ", applied_.device(),
                      ", slower than its fused kernel, which takes neither schedules of other numbers than lr nor ",
                      "dampening"));
  }
  fused_ = fused;
}

void GroupedOptimizer::append_key(std::vector<int64_t>& key) const {
  key.push_back(plan_version_);
  if (applied_.is_cpu() || !kind_.fused) return;
  key.push_back(fused_ ? 1 : 0);
  if (!fused_) return;
  for_each_number([&](std::size_t group, const std::string& name, double) {
    if (name != "lr") key.push_back(std::bit_cast<int64_t>(numbers_.at_begin(group, name)));
  });
}

NamedTensors GroupedOptimizer::mutable_state() const {
  NamedTensors tensors;
  for_each_state([&](const auto& parameter, const auto& slot, const at::Tensor& state) {
    tensors.emplace_back(slot + "." + parameter, state);
  });
  for (std::size_t i = 0; i < counters_.size(); ++i) tensors.emplace_back("step." + std::to_string(i), counters_[i]);
  if (numbers_.has_schedules()) tensors.emplace_back("numbers", numbers_.values());
  if (may_skip_) tensors.emplace_back("applied_steps", applied_);
  return tensors;
}

// A parameter without a gradient is left alone and its step does not count, as in torch.optim. Parameters that part
// ways then need counters of their own.
void GroupedOptimizer::split_counters(const std::vector<bool>& has_gradient) {
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
    ++plan_version_;  // a recorded step counts with the old counters
  }
}

void GroupedOptimizer::refresh_plan(const std::vector<bool>& has_gradient) {
  split_counters(has_gradient);
  calls_.clear();
  for (std::size_t group = 0; group < group_count(); ++group) {
    for (std::size_t counter = 0; counter < counters_.size(); ++counter) plan_calls(group, counter, has_gradient);
  }
  planned_ = has_gradient;
}

namespace {

// A kernel over tensors passes over its lists many times: on the CPU a call gets what stays in the cache meanwhile.
constexpr int64_t kTileElements = int64_t{1} << 16;

// Kernels take tensors of one dtype; parameters differ in which state they have.
struct Alike {
  at::ScalarType dtype;
  std::vector<bool> slots;
  bool operator<(const Alike& other) const { return std::tie(dtype, slots) < std::tie(other.dtype, other.slots); }
};

}  // namespace

void GroupedOptimizer::plan_calls(std::size_t group, std::size_t counter, const std::vector<bool>& has_gradient) {
  std::map<std::pair<Alike, int64_t>, Call> calls;
  std::map<Alike, int64_t> elements;
  const bool tiled = !kind_.fused && applied_.is_cpu();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& parameter = parameters_[i];
    if (parameter.group != group || parameter.counter != counter || !has_gradient[i]) continue;
    Alike alike{parameter.value.scalar_type(), {}};
    for (const at::Tensor& state : parameter.state) alike.slots.push_back(state.defined());
    const int64_t tile = tiled ? (elements[alike] += parameter.value.numel()) / kTileElements : 0;
    Call& call = calls[{alike, tile}];
    call.tensors.parameters.push_back(parameter.value);
    call.tensors.state.resize(slots_.size());
    for (std::size_t slot = 0; slot < slots_.size(); ++slot) call.tensors.state[slot].push_back(parameter.state[slot]);
  }
  for (auto& [key, call] : calls) {
    call.counter = counter;
    call.tensors.step = counters_[counter];
    call.tensors.numbers = &numbers_;
    call.tensors.group = group;
    call.tensors.gradients.resize(call.tensors.parameters.size());
    calls_.push_back(std::move(call));
  }
}

void GroupedOptimizer::step(const at::Tensor& grad_scale, const at::Tensor& found_inf) {
  const at::NoGradGuard no_grad;
  follow_layouts();
  std::vector<bool> has_gradient(parameters_.size());
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& gradient = parameters_[i].value.grad();
    has_gradient[i] = gradient.defined();
    if (has_gradient[i]) check_gradient(parameters_[i].name, parameters_[i].value, gradient);
  }
  if (has_gradient != planned_) refresh_plan(has_gradient);
  numbers_.advance(applied_);

  at::Tensor applies;  // 1, or 0 in a step that is skipped
  if (found_inf.defined()) applies = 1 - found_inf.reshape({});
  std::vector<bool> stepped(counters_.size(), false);
  for (Call& call : calls_) {
    if (!stepped[call.counter]) {
      at::Tensor& steps = counters_[call.counter];
      if (applies.defined()) {
        steps.add_(applies);
      } else {
        steps.add_(1);
      }
    }
    stepped[call.counter] = true;
    run(call.tensors, grad_scale, found_inf);
  }
  if (applies.defined()) applied_.add_(applies.to(at::kLong));
}

void GroupedOptimizer::run(KernelCall& call, const at::Tensor& grad_scale, const at::Tensor& found_inf) {
  for (std::size_t i = 0; i < call.parameters.size(); ++i) {
    if (grad_scale.defined() || (fused_ && !kind_.takes_any_layout)) lay_out_gradient(call.parameters[i]);
    call.gradients[i] = call.parameters[i].grad();
  }
  if (fused_) {
    call.grad_scale = grad_scale;
    call.found_inf = found_inf;
    kind_.kernel(call, options_);
    call.grad_scale = call.found_inf = at::Tensor();
  } else {
    run_unfused(call, grad_scale, found_inf);
  }
  // Keeping the gradients would make autograd copy the next ones instead of handing them over.
  std::fill(call.gradients.begin(), call.gradients.end(), at::Tensor());
}

// Float16 and bfloat16 are stepped in float32 and rounded once, at the end.
void GroupedOptimizer::run_over_tensors(const KernelCall& call) const {
  const auto& kernel = kind_.fused ? kind_.unfused : kind_.kernel;
  if (kernel_math::is_narrow(call)) {
    kernel_math::step_in_float32(call, [&](const KernelCall& wide) { kernel(wide, options_); });
  } else {
    kernel(call, options_);
  }
}

// Kernels over tensors know neither scale nor skipping: gradients are divided before, where they are, as the fused
// kernels do, and in a skipped step everything is put back after.
void GroupedOptimizer::run_unfused(KernelCall& call, const at::Tensor& grad_scale, const at::Tensor& found_inf) {
  if (grad_scale.defined()) {
    for (at::Tensor& gradient : call.gradients) gradient.div_(grad_scale.reshape({}));
  }
  if (!found_inf.defined()) return run_over_tensors(call);
  std::vector<at::Tensor> targets = call.parameters;
  for (const auto& slot : call.state) {
    std::copy_if(slot.begin(), slot.end(), std::back_inserter(targets),
                 [](const auto& state) { return state.defined(); });
  }
  std::vector<at::Tensor> before;
  for (const at::Tensor& target : targets) before.push_back(target.clone());
  run_over_tensors(call);
  const at::Tensor skipped = found_inf.reshape({}) != 0;
  for (std::size_t i = 0; i < targets.size(); ++i) targets[i].copy_(at::where(skipped, before[i], targets[i]));
}

}  // namespace duet
