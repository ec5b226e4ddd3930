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
#include "optim/detail/device_hyper_parameters.h"
#include "optim/optimizers/detail/over_tensors.h"
#include "optim/optimizers/optimizer_kind.h"
#include "optim/optimizers/optimizer_options.h"

// ATen's fused optimizer kernels with their numbers as tensors: a captured step then sees every new value. On the CPU
// each is one operator, duet::fused_*_, that reads the tensors when it runs; on CUDA ATen's own, whose numbers but lr
// are frozen by a capture and therefore belong to its key. Where they may not be frozen, the steps in
// over_tensors.cpp are used.

namespace duet {

namespace {

using Optional = std::optional<at::Tensor>;

double number(const at::Tensor& scalar) { return read_device_scalar(scalar); }

template <auto kernel>
void adam_cpu(at::TensorList self, at::TensorList grads, at::TensorList exp_avgs, at::TensorList exp_avg_sqs,
              at::TensorList max_exp_avg_sqs, at::TensorList steps, const at::Tensor& lr, const at::Tensor& beta1,
              const at::Tensor& beta2, const at::Tensor& weight_decay, const at::Tensor& eps, bool amsgrad,
              bool maximize, const Optional& grad_scale, const Optional& found_inf) {
  kernel(self, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, steps, number(lr), number(beta1), number(beta2),
         number(weight_decay), number(eps), amsgrad, maximize, grad_scale, found_inf);
}

using AdamKernel = void (*)(at::TensorList, at::TensorList, at::TensorList, at::TensorList, at::TensorList,
                            at::TensorList, double, double, double, double, double, bool, bool, const Optional&,
                            const Optional&);
constexpr auto kAdamCpu = adam_cpu<static_cast<AdamKernel>(at::cpu::_fused_adam_)>;
constexpr auto kAdamwCpu = adam_cpu<static_cast<AdamKernel>(at::cpu::_fused_adamw_)>;

// ATen refuses buffers without momentum, which may have been set to 0 or be scheduled. torch.optim.SGD leaves them
// alone.
at::TensorList used_buffers(at::TensorList buffers, double momentum) {
  return momentum == 0 ? at::TensorList() : buffers;
}

// The kernel's first step takes the gradient for the buffer, undamped.
void sgd_cpu(at::TensorList self, at::TensorList grads, at::TensorList buffers, const at::Tensor& step,
             const at::Tensor& lr, const at::Tensor& momentum, const at::Tensor& dampening,
             const at::Tensor& weight_decay, bool nesterov, bool maximize, const Optional& grad_scale,
             const Optional& found_inf) {
  const double by = number(momentum);
  const at::TensorList used = used_buffers(buffers, by);
  const bool first = !used.empty() && number(step) <= 1;
  at::cpu::_fused_sgd_(self, grads, used, number(weight_decay), by, number(lr), number(dampening), nesterov, maximize,
                       first, grad_scale, found_inf);
}

void adagrad_cpu(at::TensorList self, at::TensorList grads, at::TensorList sums, at::TensorList steps,
                 const at::Tensor& lr, const at::Tensor& lr_decay, const at::Tensor& weight_decay,
                 const at::Tensor& eps, bool maximize, const Optional& grad_scale, const Optional& found_inf) {
  at::cpu::_fused_adagrad_(self, grads, sums, steps, number(lr), number(lr_decay), number(weight_decay), number(eps),
                           maximize, grad_scale, found_inf);
}

constexpr const char* kAdamSchema =
    "(Tensor(a!)[] self, Tensor(b!)[] grads, Tensor(c!)[] exp_avgs, Tensor(d!)[] exp_avg_sqs, Tensor(e!)[] "
    "max_exp_avg_sqs, "
    "Tensor[] steps, Tensor lr, Tensor beta1, Tensor beta2, Tensor weight_decay, Tensor eps, bool amsgrad, bool "
    "maximize, "
    "Tensor? grad_scale, Tensor? found_inf) -> ()";

}  // namespace

// Registered when the program starts; this file is linked wherever its functions are used.
TORCH_LIBRARY_FRAGMENT(duet, library) {
  library.def((std::string("fused_adam_") + kAdamSchema).c_str());
  library.def((std::string("fused_adamw_") + kAdamSchema).c_str());
  library.def(
      "fused_sgd_(Tensor(a!)[] self, Tensor(b!)[] grads, Tensor(c!)[] momentum_buffers, Tensor step, Tensor lr, "
      "Tensor momentum, Tensor dampening, Tensor weight_decay, bool nesterov, bool maximize, Tensor? grad_scale, "
      "Tensor? found_inf) -> ()");
  library.def(
      "fused_adagrad_(Tensor(a!)[] self, Tensor(b!)[] grads, Tensor(c!)[] state_sums, Tensor[] steps, Tensor lr, "
      "Tensor lr_decay, Tensor weight_decay, Tensor eps, bool maximize, Tensor? grad_scale, Tensor? found_inf) -> ()");
}

TORCH_LIBRARY_IMPL(duet, CPU, library) {
  library.impl("fused_adam_", kAdamCpu);
  library.impl("fused_adamw_", kAdamwCpu);
  library.impl("fused_sgd_", sgd_cpu);
  library.impl("fused_adagrad_", adagrad_cpu);
}

// They change tensors in place and have no derivative.
TORCH_LIBRARY_IMPL(duet, Autograd, library) {
  for (const char* name : {"fused_adam_", "fused_adamw_", "fused_sgd_", "fused_adagrad_"}) {
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

// ATen's CUDA kernels with lr as a tensor.
constexpr auto kAdamCuda = [](const auto&... arguments) { at::_fused_adam_(arguments...); };
constexpr auto kAdamwCuda = [](const auto&... arguments) { at::_fused_adamw_(arguments...); };

// State: exp_avg, exp_avg_sq and, with amsgrad, max_exp_avg_sq.
template <class T>
std::vector<StateSlot> adam_slots(const OptimizerOptions& options) {
  std::vector<StateSlot> slots = {{"exp_avg"}, {"exp_avg_sq"}};
  if (options.as<T>().amsgrad) slots.push_back({"max_exp_avg_sq"});
  return slots;
}

template <class T, auto cuda>
void step_adam(const char* name, const KernelCall& call, const OptimizerOptions& any) {
  static const auto typed = op(name, kAdamCpu);
  const T& options = any.as<T>();
  const std::vector<at::Tensor> none;
  const auto& maxima = options.amsgrad ? call.state[2] : none;
  if (on_cpu(call)) {
    typed.call(call.parameters, call.gradients, call.state[0], call.state[1], maxima, steps_of(call), call.number("lr"),
               call.number("beta1"), call.number("beta2"), call.number("weight_decay"), call.number("eps"),
               options.amsgrad, options.maximize, optional(call.grad_scale), optional(call.found_inf));
  } else {
    cuda(call.parameters, call.gradients, call.state[0], call.state[1], maxima, steps_of(call), call.number("lr"),
         call.host_number("beta1"), call.host_number("beta2"), call.host_number("weight_decay"),
         call.host_number("eps"), options.amsgrad, options.maximize, optional(call.grad_scale),
         optional(call.found_inf));
  }
}

void step_sgd(const KernelCall& call, const OptimizerOptions& any) {
  const SGD& options = any.as<SGD>();
  // ATen's CPU kernel (2.11) leaves float16 and bfloat16 parameters as they are, but for the last few of each.
  if (on_cpu(call) && kernel_math::is_narrow(call)) {
    kernel_math::step_in_float32(call, [&](const KernelCall& wide) { step_sgd(wide, any); });
    return;
  }
  static const auto typed = op("duet::fused_sgd_", &sgd_cpu);
  const std::vector<at::Tensor> none;
  const auto& buffers = call.state.empty() ? none : call.state[0];
  if (on_cpu(call)) {
    typed.call(call.parameters, call.gradients, buffers, call.step, call.number("lr"), call.number("momentum"),
               call.number("dampening"), call.number("weight_decay"), options.nesterov, options.maximize,
               optional(call.grad_scale), optional(call.found_inf));
  } else {
    const double momentum = call.host_number("momentum");
    // Without dampening a buffer of zeros makes the first step like all others.
    at::_fused_sgd_(call.parameters, call.gradients, used_buffers(buffers, momentum), call.host_number("weight_decay"),
                    momentum, call.number("lr"), /*dampening=*/0, options.nesterov, options.maximize,
                    /*is_first_step=*/false, optional(call.grad_scale), optional(call.found_inf));
  }
}

void step_adagrad(const KernelCall& call, const OptimizerOptions& any) {
  const bool maximize = any.as<Adagrad>().maximize;
  // ATen's CPU kernel (2.11) rounds eps to the parameters' dtype: 1e-10 is 0 in float16, and a zero gradient gives 0 /
  // 0.
  if (on_cpu(call) && kernel_math::is_narrow(call)) {
    kernel_math::step_in_float32(call, [&](const KernelCall& wide) { step_adagrad(wide, any); });
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

}  // namespace

// torch.optim.Adam(fused=True), and so on.
const OptimizerKind kAdam = {
    .name = "Adam",
    .slots = adam_slots<Adam>,
    .numbers = numbers_in,
    .kernel = [](const KernelCall& call,
                 const OptimizerOptions& options) { step_adam<Adam, kAdamCuda>("duet::fused_adam_", call, options); },
    .fused = true,
    .unfused = over_tensors::adam,
};

const OptimizerKind kAdamw = {
    .name = "AdamW",
    .slots = adam_slots<AdamW>,
    .numbers = numbers_in,
    .kernel =
        [](const KernelCall& call, const OptimizerOptions& options) {
          step_adam<AdamW, kAdamwCuda>("duet::fused_adamw_", call, options);
        },
    .fused = true,
    .unfused = over_tensors::adamw,
};

const OptimizerKind kSgd = {
    .name = "SGD",
    .slots =
        [](const OptimizerOptions& options) {
          return options.as<SGD>().momentum != 0 ? std::vector<StateSlot>{{"momentum_buffer"}}
                                                 : std::vector<StateSlot>{};
        },
    .numbers = numbers_in,
    .kernel = step_sgd,
    .fused = true,
    .unfused = over_tensors::sgd,
};

const OptimizerKind kAdagrad = {
    .name = "Adagrad",
    .slots =
        [](const OptimizerOptions& options) {
          return std::vector<StateSlot>{{.name = "sum", .initial = options.as<Adagrad>().initial_accumulator_value}};
        },
    .numbers =
        [](const OptimizerOptions& options) {
          std::map<std::string, double> numbers = numbers_in(options);
          numbers.erase("initial_accumulator_value");  // read once, when the state is made
          return numbers;
        },
    .kernel = step_adagrad,
    .fused = true,
    .unfused = over_tensors::adagrad,
};

}  // namespace duet
