#include <algorithm>
#include <tuple>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/where.h>
#include "optim/optimizers/detail/grouped_optimizer.h"

// Which kernel calls a step makes, and the step.

namespace duet {

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
    started_.push_back(started_[counter]);
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
    call.members.push_back(i);
    call.tensors.parameters.push_back(parameter.value);
    call.tensors.state.resize(slots_.size());
    for (std::size_t slot = 0; slot < slots_.size(); ++slot) call.tensors.state[slot].push_back(parameter.state[slot]);
  }
  for (auto& [key, call] : calls) {
    call.counter = counter;
    call.tensors.step = counters_[counter];
    call.tensors.numbers = &numbers_;
    call.tensors.group = group;
    call.tensors.first = !started_[counter];
    call.tensors.gradients.resize(call.members.size());
    calls_.push_back(std::move(call));
  }
}

namespace {

// The gradient in the layout of its parameter; autograd gives it so, a user's own gradient may differ.
at::Tensor laid_out_like(const at::Tensor& parameter, const at::Tensor& gradient) {
  if (gradient.strides() == parameter.strides()) return gradient;
  at::Tensor copy = at::empty_like(parameter, parameter.options().requires_grad(false));
  return copy.copy_(gradient);
}

}  // namespace

void GroupedOptimizer::step(const at::Tensor& grad_scale, const at::Tensor& found_inf) {
  const at::NoGradGuard no_grad;
  std::vector<bool> has_gradient(parameters_.size());
  for (std::size_t i = 0; i < parameters_.size(); ++i) has_gradient[i] = parameters_[i].value.grad().defined();
  if (has_gradient != planned_) refresh_plan(has_gradient);
  numbers_.advance(applied_);

  at::Tensor applies;  // 1, or 0 in a step that is skipped
  if (found_inf.defined()) applies = 1 - found_inf.reshape({});
  std::vector<bool> stepped(counters_.size(), false);
  for (Call& call : calls_) {
    if (!stepped[call.counter]) {
      if (applies.defined()) {
        counters_[call.counter].add_(applies);
      } else {
        counters_[call.counter].add_(1);
      }
    }
    stepped[call.counter] = true;
    run(call, grad_scale, found_inf);
  }
  if (applies.defined()) applied_.add_(applies.to(at::kLong));
  const bool first = std::any_of(calls_.begin(), calls_.end(), [](const Call& call) { return call.tensors.first; });
  if (!first) return;
  for (Call& call : calls_) call.tensors.first = false;
  for (std::size_t counter = 0; counter < stepped.size(); ++counter)
    started_[counter] = started_[counter] || stepped[counter];
  if (!applied_.is_cpu()) ++plan_version_;  // CUDA's SGD kernel is told by the host that it is the first step
}

void GroupedOptimizer::run(Call& call, const at::Tensor& grad_scale, const at::Tensor& found_inf) {
  KernelCall& tensors = call.tensors;
  for (std::size_t m = 0; m < call.members.size(); ++m) {
    tensors.gradients[m] = laid_out_like(tensors.parameters[m], tensors.parameters[m].grad());
  }
  if (kind_.fused) {
    tensors.grad_scale = grad_scale;
    tensors.found_inf = found_inf;
    kind_.kernel(tensors, options_);
    tensors.grad_scale = tensors.found_inf = at::Tensor();
  } else {
    run_unfused(call, grad_scale, found_inf);
  }
  // Keeping the gradients would make autograd copy the next ones instead of handing them over.
  std::fill(tensors.gradients.begin(), tensors.gradients.end(), at::Tensor());
}

// Kernels over tensors know neither scale nor skipping: gradients are divided before, and in a skipped step everything
// is put back after.
void GroupedOptimizer::run_unfused(Call& call, const at::Tensor& grad_scale, const at::Tensor& found_inf) {
  KernelCall& tensors = call.tensors;
  if (grad_scale.defined()) {
    for (at::Tensor& gradient : tensors.gradients) gradient = gradient / grad_scale.reshape({});
  }
  std::vector<at::Tensor> targets;
  std::vector<at::Tensor> before;
  if (found_inf.defined()) {
    targets = tensors.parameters;
    for (const auto& slot : tensors.state) {
      for (const at::Tensor& state : slot) {
        if (state.defined()) targets.push_back(state);
      }
    }
    for (const at::Tensor& target : targets) before.push_back(target.clone());
  }
  run_kernel(kind_, tensors, options_);
  if (!found_inf.defined()) return;
  const at::Tensor skipped = found_inf.reshape({}) != 0;
  for (std::size_t i = 0; i < targets.size(); ++i) targets[i].copy_(at::where(skipped, before[i], targets[i]));
}

}  // namespace duet
