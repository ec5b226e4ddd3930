#include "optim/optimizers/detail/fused_kernels.h"
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_fused_adagrad.h>
#include <ATen/ops/_fused_adagrad_cpu_dispatch.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adam_cpu_dispatch.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_adamw_cpu_dispatch.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/_fused_sgd_cpu_dispatch.h>
#include <torch/library.h>
#include "optim/detail/device_scalar.h"
#include "optim/optimizers/kernel_math.h"

namespace duet {

namespace {

using Optional = std::optional<at::Tensor>;

double number(const at::Tensor& scalar) { return read_device_scalar(scalar); }

void adam_cpu(at::TensorList self, at::TensorList grads, at::TensorList exp_avgs, at::TensorList exp_avg_sqs,
              at::TensorList max_exp_avg_sqs, at::TensorList steps, const at::Tensor& lr, const at::Tensor& beta1,
              const at::Tensor& beta2, const at::Tensor& weight_decay, const at::Tensor& eps, bool amsgrad,
              bool maximize, const Optional& grad_scale, const Optional& found_inf) {
  at::cpu::_fused_adam_(self, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, steps, number(lr), number(beta1),
                        number(beta2), number(weight_decay), number(eps), amsgrad, maximize, grad_scale, found_inf);
}

void adamw_cpu(at::TensorList self, at::TensorList grads, at::TensorList exp_avgs, at::TensorList exp_avg_sqs,
               at::TensorList max_exp_avg_sqs, at::TensorList steps, const at::Tensor& lr, const at::Tensor& beta1,
               const at::Tensor& beta2, const at::Tensor& weight_decay, const at::Tensor& eps, bool amsgrad,
               bool maximize, const Optional& grad_scale, const Optional& found_inf) {
  at::cpu::_fused_adamw_(self, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, steps, number(lr), number(beta1),
                         number(beta2), number(weight_decay), number(eps), amsgrad, maximize, grad_scale, found_inf);
}

// The kernel's first step takes the gradient for the buffer, undamped.
void sgd_cpu(at::TensorList self, at::TensorList grads, at::TensorList buffers, const at::Tensor& step,
             const at::Tensor& lr, const at::Tensor& momentum, const at::Tensor& dampening,
             const at::Tensor& weight_decay, bool nesterov, bool maximize, const Optional& grad_scale,
             const Optional& found_inf) {
  const bool first = !buffers.empty() && number(step) <= 1;
  at::cpu::_fused_sgd_(self, grads, buffers, number(weight_decay), number(momentum), number(lr), number(dampening),
                       nesterov, maximize, first, grad_scale, found_inf);
}

void adagrad_cpu(at::TensorList self, at::TensorList grads, at::TensorList sums, at::TensorList steps,
                 const at::Tensor& lr, const at::Tensor& lr_decay, const at::Tensor& weight_decay,
                 const at::Tensor& eps, bool maximize, const Optional& grad_scale, const Optional& found_inf) {
  at::cpu::_fused_adagrad_(self, grads, sums, steps, number(lr), number(lr_decay), number(weight_decay), number(eps),
                           maximize, grad_scale, found_inf);
}

// One operator in place of four: in eager mode it costs what one of them does.
void look_up_cpu(at::Tensor& values, const at::Tensor& held, const at::Tensor& table, const at::Tensor& base,
                 const at::Tensor& applied) {
  const int64_t row = *applied.const_data_ptr<int64_t>() - *base.const_data_ptr<int64_t>();
  TORCH_CHECK_INDEX(row >= 0 && row < table.size(0), "row ", row, " of a table of ", table.size(0));
  const int64_t count = values.numel();
  const double* const from = table.const_data_ptr<double>() + row * count;
  const bool* const keep = held.const_data_ptr<bool>();
  auto* const to = values.mutable_data_ptr<double>();
  for (int64_t i = 0; i < count; ++i) {
    if (!keep[i]) to[i] = from[i];
  }
}

constexpr const char* kAdam =
    "(Tensor(a!)[] self, Tensor(b!)[] grads, Tensor(c!)[] exp_avgs, Tensor(d!)[] exp_avg_sqs, Tensor(e!)[] "
    "max_exp_avg_sqs, "
    "Tensor[] steps, Tensor lr, Tensor beta1, Tensor beta2, Tensor weight_decay, Tensor eps, bool amsgrad, bool "
    "maximize, "
    "Tensor? grad_scale, Tensor? found_inf) -> ()";

}  // namespace

// Registered when the program starts; this file is linked wherever its functions are used.
TORCH_LIBRARY(duet, library) {
  library.def((std::string("fused_adam_") + kAdam).c_str());
  library.def((std::string("fused_adamw_") + kAdam).c_str());
  library.def(
      "fused_sgd_(Tensor(a!)[] self, Tensor(b!)[] grads, Tensor(c!)[] momentum_buffers, Tensor step, Tensor lr, "
      "Tensor momentum, Tensor dampening, Tensor weight_decay, bool nesterov, bool maximize, Tensor? grad_scale, "
      "Tensor? found_inf) -> ()");
  library.def(
      "fused_adagrad_(Tensor(a!)[] self, Tensor(b!)[] grads, Tensor(c!)[] state_sums, Tensor[] steps, Tensor lr, "
      "Tensor lr_decay, Tensor weight_decay, Tensor eps, bool maximize, Tensor? grad_scale, Tensor? found_inf) -> ()");
  library.def("look_up_(Tensor(a!) values, Tensor held, Tensor table, Tensor base, Tensor applied) -> ()");
}

TORCH_LIBRARY_IMPL(duet, CPU, library) {
  library.impl("fused_adam_", adam_cpu);
  library.impl("fused_adamw_", adamw_cpu);
  library.impl("fused_sgd_", sgd_cpu);
  library.impl("fused_adagrad_", adagrad_cpu);
  library.impl("look_up_", look_up_cpu);
}

// They change tensors in place and have no derivative.
TORCH_LIBRARY_IMPL(duet, Autograd, library) {
  for (const char* name : {"fused_adam_", "fused_adamw_", "fused_sgd_", "fused_adagrad_", "look_up_"}) {
    library.impl(name, torch::CppFunction::makeFallthrough());
  }
}

namespace {

Optional optional(const at::Tensor& tensor) { return tensor.defined() ? Optional(tensor) : std::nullopt; }

bool on_cpu(const KernelCall& call) { return call.parameters.front().is_cpu(); }

template <class Function>
auto op(const char* name, Function*) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Function>();
}

std::vector<at::Tensor> steps_of(const KernelCall& call) {
  return std::vector<at::Tensor>(call.parameters.size(), call.step);
}

template <class Typed, class Cuda>
void adam(const KernelCall& call, bool amsgrad, bool maximize, const Typed& typed, Cuda cuda) {
  const std::vector<at::Tensor> none;
  const auto& maxima = amsgrad ? call.state[2] : none;
  if (on_cpu(call)) {
    typed.call(call.parameters, call.gradients, call.state[0], call.state[1], maxima, steps_of(call), call.number("lr"),
               call.number("beta1"), call.number("beta2"), call.number("weight_decay"), call.number("eps"), amsgrad,
               maximize, optional(call.grad_scale), optional(call.found_inf));
  } else {
    cuda(call.parameters, call.gradients, call.state[0], call.state[1], maxima, steps_of(call), call.number("lr"),
         call.host_number("beta1"), call.host_number("beta2"), call.host_number("weight_decay"),
         call.host_number("eps"), amsgrad, maximize, optional(call.grad_scale), optional(call.found_inf));
  }
}

}  // namespace

void look_up_on_cpu(at::Tensor& values, const at::Tensor& held, const at::Tensor& table, const at::Tensor& base,
                    const at::Tensor& applied) {
  static const auto typed = op("duet::look_up_", &look_up_cpu);
  typed.call(values, held, table, base, applied);
}

void fused_adam(const KernelCall& call, bool amsgrad, bool maximize) {
  static const auto typed = op("duet::fused_adam_", &adam_cpu);
  adam(call, amsgrad, maximize, typed, [](const auto&... arguments) { at::_fused_adam_(arguments...); });
}

void fused_adamw(const KernelCall& call, bool amsgrad, bool maximize) {
  static const auto typed = op("duet::fused_adamw_", &adamw_cpu);
  adam(call, amsgrad, maximize, typed, [](const auto&... arguments) { at::_fused_adamw_(arguments...); });
}

void fused_sgd(const KernelCall& call, bool nesterov, bool maximize) {
  // ATen's CPU kernel (2.11) leaves float16 and bfloat16 parameters as they are, but for the last few of each.
  if (on_cpu(call) && kernel_math::is_narrow(call)) {
    kernel_math::step_in_float32(call, [&](const KernelCall& wide) { fused_sgd(wide, nesterov, maximize); });
    return;
  }
  static const auto typed = op("duet::fused_sgd_", &sgd_cpu);
  const std::vector<at::Tensor> none;
  const auto& buffers = call.state.empty() ? none : call.state[0];
  if (on_cpu(call)) {
    typed.call(call.parameters, call.gradients, buffers, call.step, call.number("lr"), call.number("momentum"),
               call.number("dampening"), call.number("weight_decay"), nesterov, maximize, optional(call.grad_scale),
               optional(call.found_inf));
  } else {
    at::_fused_sgd_(call.parameters, call.gradients, buffers, call.host_number("weight_decay"),
                    call.host_number("momentum"), call.number("lr"), call.host_number("dampening"), nesterov, maximize,
                    call.first && !buffers.empty(), optional(call.grad_scale), optional(call.found_inf));
  }
}

void fused_adagrad(const KernelCall& call, bool maximize) {
  // ATen's CPU kernel (2.11) rounds eps to the parameters' dtype: 1e-10 is 0 in float16, and a zero gradient gives 0 /
  // 0.
  if (on_cpu(call) && kernel_math::is_narrow(call)) {
    kernel_math::step_in_float32(call, [&](const KernelCall& wide) { fused_adagrad(wide, maximize); });
    return;
  }
  static const auto typed = op("duet::fused_adagrad_", &adagrad_cpu);
  if (on_cpu(call)) {
    typed.call(call.parameters, call.gradients, call.state[0], steps_of(call), call.number("lr"),
               call.number("lr_decay"), call.number("weight_decay"), call.number("eps"), maximize,
               optional(call.grad_scale), optional(call.found_inf));
  } else {
    at::_fused_adagrad_(call.parameters, call.gradients, call.state[0], steps_of(call), call.number("lr"),
                        call.host_number("lr_decay"), call.host_number("weight_decay"), call.host_number("eps"),
                        maximize, optional(call.grad_scale), optional(call.found_inf));
  }
}

}  // namespace duet
