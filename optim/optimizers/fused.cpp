#include <concepts>
#include <ATen/TensorOperators.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_addcmul.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_sqrt.h>
#include <ATen/ops/_fused_adagrad.h>
#include <ATen/ops/_fused_adagrad_cpu_dispatch.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adam_cpu_dispatch.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_adamw_cpu_dispatch.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/_fused_sgd_cpu_dispatch.h>
#include <ATen/ops/rsub.h>
#include <ATen/ops/where.h>
#include <torch/library.h>
#include "optim/detail/device_hyper_parameters.h"
#include "optim/optimizers/optimizer_kind.h"
#include "optim/optimizers/optimizer_options.h"

// ATen's fused optimizer kernels with their numbers as tensors: a captured step then sees every new value. On the CPU
// each is one operator, duet::fused_*_, that reads the tensors when it runs; on CUDA ATen's own, whose numbers but lr
// are frozen by a capture and therefore belong to its key. Where they may not be frozen, the same steps are taken over
// tensors.

namespace duet {

namespace {

using namespace kernel_math;
using Lists = at::TensorList;
using Optional = std::optional<at::Tensor>;

// What duet::fused_*_ are called with: the optimizer's slots, empty where it has fewer; its numbers in the order of its
// FusedOp; amsgrad or nesterov.
using FusedCall = void(Lists self, Lists grads, Lists slot0, Lists slot1, Lists slot2, Lists steps, Lists numbers,
                       bool flag, bool maximize, const Optional& grad_scale, const Optional& found_inf);
constexpr const char* kSchema =
    "(Tensor(a!)[] self, Tensor(b!)[] grads, Tensor(c!)[] slot0, Tensor(d!)[] slot1, Tensor(e!)[] slot2, Tensor[] "
    "steps, Tensor[] numbers, bool flag, bool maximize, Tensor? grad_scale, Tensor? found_inf) -> ()";

struct FusedOp {
  const char* name;
  FusedCall* cpu;
  std::vector<const char*> numbers;
};

std::vector<double> read(Lists numbers) {
  std::vector<double> values;
  for (const at::Tensor& number : numbers) values.push_back(read_device_scalar(number));
  return values;
}

template <auto kernel>
void adam_cpu(Lists self, Lists grads, Lists exp_avgs, Lists exp_avg_sqs, Lists max_exp_avg_sqs, Lists steps,
              Lists numbers, bool amsgrad, bool maximize, const Optional& grad_scale, const Optional& found_inf) {
  const std::vector<double> n = read(numbers);
  kernel(self, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, steps, n[0], n[1], n[2], n[3], n[4], amsgrad, maximize,
         grad_scale, found_inf);
}

using AdamKernel = void (*)(Lists, Lists, Lists, Lists, Lists, Lists, double, double, double, double, double, bool,
                            bool, const Optional&, const Optional&);
const std::vector<const char*> kAdamNumbers = {"lr", "beta1", "beta2", "weight_decay", "eps"};
const FusedOp kAdamOp{"fused_adam_", adam_cpu<static_cast<AdamKernel>(at::cpu::_fused_adam_)>, kAdamNumbers};
const FusedOp kAdamwOp{"fused_adamw_", adam_cpu<static_cast<AdamKernel>(at::cpu::_fused_adamw_)>, kAdamNumbers};

// ATen refuses buffers without momentum, which may have been set to 0 or be scheduled. torch.optim.SGD leaves them
// alone.
Lists used_buffers(Lists buffers, double momentum) { return momentum == 0 ? Lists() : buffers; }

// The kernel's first step takes the gradient for the buffer, undamped.
void sgd_cpu(Lists self, Lists grads, Lists buffers, Lists /*slot1*/, Lists /*slot2*/, Lists steps, Lists numbers,
             bool nesterov, bool maximize, const Optional& grad_scale, const Optional& found_inf) {
  const std::vector<double> n = read(numbers);
  const Lists used = used_buffers(buffers, n[1]);
  const bool first = !used.empty() && read_device_scalar(steps.front()) <= 1;
  at::cpu::_fused_sgd_(self, grads, used, n[3], n[1], n[0], n[2], nesterov, maximize, first, grad_scale, found_inf);
}
const FusedOp kSgdOp{"fused_sgd_", sgd_cpu, {"lr", "momentum", "dampening", "weight_decay"}};

void adagrad_cpu(Lists self, Lists grads, Lists sums, Lists /*slot1*/, Lists /*slot2*/, Lists steps, Lists numbers,
                 bool /*flag*/, bool maximize, const Optional& grad_scale, const Optional& found_inf) {
  const std::vector<double> n = read(numbers);
  at::cpu::_fused_adagrad_(self, grads, sums, steps, n[0], n[1], n[2], n[3], maximize, grad_scale, found_inf);
}
const FusedOp kAdagradOp{"fused_adagrad_", adagrad_cpu, {"lr", "lr_decay", "weight_decay", "eps"}};

}  // namespace

// Registered when the program starts; this file is linked wherever its functions are used. They change tensors in place
// and have no derivative.
TORCH_LIBRARY_FRAGMENT(duet, library) {
  for (const FusedOp* op : {&kAdamOp, &kAdamwOp, &kSgdOp, &kAdagradOp}) {
    library.def((op->name + std::string(kSchema)).c_str());
    library.impl(op->name, torch::dispatch(c10::DispatchKey::CPU, op->cpu));
    library.impl(op->name, torch::dispatch(c10::DispatchKey::Autograd, torch::CppFunction::makeFallthrough()));
  }
}

namespace {

Optional optional(const at::Tensor& tensor) { return tensor.defined() ? Optional(tensor) : std::nullopt; }

bool on_cpu(const KernelCall& call) { return call.parameters.front().is_cpu(); }

Tensors steps_of(const KernelCall& call) { return Tensors(call.parameters.size(), call.step); }

template <const FusedOp& op>
void step_on_cpu(const KernelCall& call, bool flag, bool maximize) {
  static const auto typed =
      c10::Dispatcher::singleton().findSchemaOrThrow((std::string("duet::") + op.name).c_str(), "").typed<FusedCall>();
  const Tensors none;
  const auto slot = [&](std::size_t i) -> Lists { return i < call.state.size() ? call.state[i] : none; };
  Tensors numbers;
  for (const char* name : op.numbers) numbers.push_back(call.number(name));
  typed.call(call.parameters, call.gradients, slot(0), slot(1), slot(2), steps_of(call), numbers, flag, maximize,
             optional(call.grad_scale), optional(call.found_inf));
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

template <class T, const FusedOp& op, auto cuda>
void step_adam(const KernelCall& call, const OptimizerOptions& any) {
  const T& options = any.as<T>();
  if (on_cpu(call)) return step_on_cpu<op>(call, options.amsgrad, options.maximize);
  const Tensors none;
  cuda(call.parameters, call.gradients, call.state[0], call.state[1], options.amsgrad ? call.state[2] : none,
       steps_of(call), call.number("lr"), call.host_number("beta1"), call.host_number("beta2"),
       call.host_number("weight_decay"), call.host_number("eps"), options.amsgrad, options.maximize,
       optional(call.grad_scale), optional(call.found_inf));
}

void step_sgd(const KernelCall& call, const OptimizerOptions& any) {
  const SGD& options = any.as<SGD>();
  // ATen's CPU kernel (2.11) leaves float16 and bfloat16 parameters as they are, but for the last few of each.
  if (on_cpu(call) && is_narrow(call)) {
    return step_in_float32(call, [&](const KernelCall& wide) { step_sgd(wide, any); });
  }
  if (on_cpu(call)) return step_on_cpu<kSgdOp>(call, options.nesterov, options.maximize);
  const Tensors none;
  const Tensors& buffers = call.state.empty() ? none : call.state[0];
  const double momentum = call.host_number("momentum");
  // Without dampening a buffer of zeros makes the first step like all others.
  at::_fused_sgd_(call.parameters, call.gradients, used_buffers(buffers, momentum), call.host_number("weight_decay"),
                  momentum, call.number("lr"), /*dampening=*/0, options.nesterov, options.maximize,
                  /*is_first_step=*/false, optional(call.grad_scale), optional(call.found_inf));
}

void step_adagrad(const KernelCall& call, const OptimizerOptions& any) {
  const bool maximize = any.as<Adagrad>().maximize;
  // ATen's CPU kernel (2.11) rounds eps to the parameters' dtype: 1e-10 is 0 in float16, and a zero gradient gives 0 /
  // 0.
  if (on_cpu(call) && is_narrow(call)) {
    return step_in_float32(call, [&](const KernelCall& wide) { step_adagrad(wide, any); });
  }
  if (on_cpu(call)) return step_on_cpu<kAdagradOp>(call, /*flag=*/false, maximize);
  at::_fused_adagrad_(call.parameters, call.gradients, call.state[0], steps_of(call), call.number("lr"),
                      call.host_number("lr_decay"), call.host_number("weight_decay"), call.host_number("eps"), maximize,
                      optional(call.grad_scale), optional(call.found_inf));
}

// The same steps over tensors, with torch.optim's single-tensor arithmetic.

// What SGD moves along; `gradients` may be changed. The first step takes the gradient for the buffer, undamped: which
// one that is only the device knows, since a step may have been skipped. While momentum is 0 the buffer rests.
Tensors with_momentum(const KernelCall& call, Tensors gradients, bool nesterov) {
  const Tensors& buffers = call.state[0];
  const at::Tensor momentum = number64(call, "momentum");
  const at::Tensor rests = momentum == 0;
  const at::Tensor share = at::where(call.step <= 1, 1.0, at::rsub(number64(call, "dampening"), 1));
  at::_foreach_mul_(buffers, cast_like(at::where(rests, 1.0, momentum), buffers));
  add_scaled_(buffers, gradients, at::where(rests, 0.0, share));
  if (nesterov) {
    add_scaled_(gradients, buffers, momentum);
    return gradients;
  }
  for (std::size_t i = 0; i < buffers.size(); ++i) gradients[i] = at::where(rests, gradients[i], buffers[i]);
  return gradients;
}

template <class T>
void adam_over_tensors(const KernelCall& call, const OptimizerOptions& any) {
  const T& options = any.as<T>();
  constexpr bool kDecoupled = std::same_as<T, AdamW>;
  if (kDecoupled) decay_parameters(call);
  const Tensors gradients = descent_gradients(call, options.maximize, /*l2_decay=*/!kDecoupled);
  const Tensors roots = adam_roots(call, gradients, /*slot=*/0, options.amsgrad);
  at::_foreach_add_(roots, cast_like(call.number("eps"), roots));
  adam_move(call, call.state[0], roots);
}

void sgd_over_tensors(const KernelCall& call, const OptimizerOptions& any) {
  const SGD& options = any.as<SGD>();
  Tensors directions = descent_gradients(call, options.maximize, /*l2_decay=*/true);
  if (!call.state.empty()) directions = with_momentum(call, std::move(directions), options.nesterov);
  add_scaled_(call.parameters, directions, -number64(call, "lr"));
}

void adagrad_over_tensors(const KernelCall& call, const OptimizerOptions& options) {
  const Tensors gradients = descent_gradients(call, options.as<Adagrad>().maximize, /*l2_decay=*/true);
  const Tensors& sums = call.state[0];
  at::_foreach_addcmul_(sums, gradients, gradients);
  const Tensors roots = at::_foreach_sqrt(sums);
  at::_foreach_add_(roots, cast_like(call.number("eps"), roots));
  const at::Tensor decay = (call.step.to(at::kDouble) - 1) * number64(call, "lr_decay") + 1;
  add_quotient_(call.parameters, gradients, roots, -number64(call, "lr") / decay);
}

}  // namespace

// torch.optim.Adam(fused=True), and so on.
const OptimizerKind kAdam = {
    .name = "Adam",
    .slots = adam_slots<Adam>,
    .kernel = step_adam<Adam, kAdamOp, kAdamCuda>,
    .fused = true,
    .unfused = adam_over_tensors<Adam>,
};

const OptimizerKind kAdamw = {
    .name = "AdamW",
    .slots = adam_slots<AdamW>,
    .kernel = step_adam<AdamW, kAdamwOp, kAdamwCuda>,
    .fused = true,
    .unfused = adam_over_tensors<AdamW>,
};

const OptimizerKind kSgd = {
    .name = "SGD",
    .slots =
        [](const OptimizerOptions& options) {
          return options.as<SGD>().momentum != 0 ? std::vector<StateSlot>{{"momentum_buffer"}}
                                                 : std::vector<StateSlot>{};
        },
    .kernel = step_sgd,
    .fused = true,
    .unfused = sgd_over_tensors,
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
    .unfused = adagrad_over_tensors,
};

}  // namespace duet
