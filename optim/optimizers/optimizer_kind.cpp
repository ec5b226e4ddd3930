#include "optim/optimizers/optimizer_kind.h"
#include <ATen/TensorOperators.h>
#include <ATen/ops/_foreach_addcdiv.h>
#include <ATen/ops/_foreach_addcmul.h>
#include <ATen/ops/_foreach_div.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/_foreach_maximum.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_neg.h>
#include <ATen/ops/_foreach_sqrt.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/rsub.h>
#include <ATen/ops/sqrt.h>
#include <c10/util/StringUtil.h>
#include "base/error.h"
#include "optim/detail/device_hyper_parameters.h"
#include "optim/optimizers/optimizer_options.h"

namespace duet {

const at::Tensor& KernelCall::number(const char* name) const { return numbers->tensor(group, name); }

double KernelCall::host_number(const char* name) const { return numbers->at_begin(group, name); }

const OptimizerKind* find_optimizer_kind(const std::string& name) {
  for (const OptimizerKind* kind : {&kSgd, &kAdam, &kAdamw, &kAdagrad, &kRmsprop, &kNadam, &kRadam, &kLion, &kMuon,
                                    &kAdadelta, &kAdafactor, &kAdamax, &kAsgd, &kRprop, &kSparseAdam}) {
    if (name == kind->name) return kind;
  }
  return nullptr;
}

const OptimizerKind* find_optimizer_kind(const OptimizerOptions& options) {
  return options.own_kind() != nullptr ? options.own_kind() : find_optimizer_kind(options.type());
}

std::map<std::string, double> numbers_in(const OptimizerOptions& options) {
  std::map<std::string, double> numbers;
  for (const OptionField& field : options.fields()) {
    const OptionValue value = field.get(options.data());
    if (const auto* number = std::get_if<double>(&value)) numbers.emplace(field.name, *number);
    if (field.name != "betas") continue;
    const auto& betas = std::get<std::vector<double>>(value);
    numbers.emplace("beta1", betas[0]);
    numbers.emplace("beta2", betas[1]);
  }
  return numbers;
}

void throw_state_index(std::size_t index, std::size_t size) {
  throw ConfigError(c10::str("[KernelCall] the optimizer's kernel reads state at index ", index,
                             ", expected one below ", size,
                             "; state is [slot][parameter], with slots in the order of OptimizerKind::slots"));
}

}  // namespace duet

namespace duet::kernel_math {

namespace {

// Lists take a 0-dim tensor per element: _foreach_addcmul and _foreach_lerp would read a shared one on the host.
Tensors repeated(const at::Tensor& scalar, const Tensors& like) { return Tensors(like.size(), scalar); }

void widen(Tensors& tensors) {
  for (at::Tensor& tensor : tensors) {
    if (tensor.defined()) tensor = tensor.to(at::kFloat);
  }
}

void write_back(const Tensors& from, const Tensors& to) {
  for (std::size_t i = 0; i < to.size(); ++i) {
    if (to[i].defined() && !to[i].is_same(from[i])) to[i].copy_(from[i]);
  }
}

}  // namespace

bool is_narrow(const KernelCall& call) {
  const at::ScalarType dtype = call.parameters.front().scalar_type();
  return dtype == at::kHalf || dtype == at::kBFloat16;
}

void step_in_float32(const KernelCall& call, const std::function<void(const KernelCall&)>& step) {
  KernelCall wide = call;
  widen(wide.parameters);
  widen(wide.gradients);
  for (Tensors& tensors : wide.state) widen(tensors);
  step(wide);
  write_back(wide.parameters, call.parameters);
  if (call.grad_scale.defined()) write_back(wide.gradients, call.gradients);
  for (std::size_t slot = 0; slot < call.state.size(); ++slot) write_back(wide.state[slot], call.state[slot]);
}

at::Tensor number64(const KernelCall& call, const char* name) { return call.number(name).to(at::kDouble); }

at::Tensor cast_like(const at::Tensor& number, const Tensors& tensors) {
  return number.to(tensors.front().scalar_type());
}

Tensors descent_gradients(const KernelCall& call, bool maximize, bool l2_decay) {
  Tensors gradients = maximize ? at::_foreach_neg(call.gradients) : call.gradients;
  if (!l2_decay) return gradients;
  const at::Tensor weight_decay = cast_like(call.number("weight_decay"), gradients);
  return at::_foreach_addcmul(gradients, call.parameters, repeated(weight_decay, gradients));
}

void decay_parameters(const KernelCall& call) {
  const at::Tensor kept = at::rsub(number64(call, "lr") * number64(call, "weight_decay"), 1);
  at::_foreach_mul_(call.parameters, cast_like(kept, call.parameters));
}

void add_scaled_(const Tensors& self, const Tensors& other, const at::Tensor& factor) {
  at::_foreach_addcmul_(self, other, repeated(cast_like(factor, self), self));
}

void add_quotient_(const Tensors& self, const Tensors& numerator, const Tensors& denominator,
                   const at::Tensor& factor) {
  at::_foreach_addcdiv_(self, at::_foreach_mul(numerator, cast_like(factor, self)), denominator);
}

void lerp_(const Tensors& self, const Tensors& end, const at::Tensor& weight) {
  at::_foreach_lerp_(self, end, repeated(cast_like(weight, self), self));
}

void average_squares_(const Tensors& averages, const Tensors& gradients, const at::Tensor& beta) {
  at::_foreach_mul_(averages, cast_like(beta, averages));
  const Tensors shares = at::_foreach_mul(gradients, cast_like(at::rsub(beta, 1), gradients));
  at::_foreach_addcmul_(averages, shares, gradients);
}

at::Tensor bias_correction(const at::Tensor& beta, const at::Tensor& step) {
  return at::rsub(at::pow(beta, step.to(at::kDouble)), 1);
}

Tensors adam_roots(const KernelCall& call, const Tensors& gradients, std::size_t slot, bool amsgrad) {
  const Tensors& squares = call.state[slot + 1];
  const at::Tensor beta2 = number64(call, "beta2");
  lerp_(call.state[slot], gradients, at::rsub(number64(call, "beta1"), 1));
  average_squares_(squares, gradients, beta2);
  if (amsgrad) at::_foreach_maximum_(call.state[slot + 2], squares);
  const Tensors roots = at::_foreach_sqrt(amsgrad ? call.state[slot + 2] : squares);
  at::_foreach_div_(roots, cast_like(at::sqrt(bias_correction(beta2, call.step)), roots));
  return roots;
}

void adam_move(const KernelCall& call, const Tensors& averages, const Tensors& denominators) {
  const at::Tensor step_size = -number64(call, "lr") / bias_correction(number64(call, "beta1"), call.step);
  add_quotient_(call.parameters, averages, denominators, step_size);
}

}  // namespace duet::kernel_math
