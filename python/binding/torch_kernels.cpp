#include "python/binding/torch_kernels.h"
#include <cmath>
#include <ATen/TensorOperators.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_fused_adagrad.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/maximum.h>
#include <c10/util/StringUtil.h>
#include <torch/library.h>
#include "optim/detail/device_hyper_parameters.h"
#include "python/binding/torch_number.h"

namespace duet::python {

namespace {

using Lists = at::TensorList;

using Optional = std::optional<at::Tensor>;

double value(const at::Tensor& scalar) { return read_device_scalar(scalar); }

// The last one holds the types of the others, a digit each.
std::vector<TorchNumber> read(Lists numbers) {
  std::vector<TorchNumber> read;
  auto types = static_cast<int64_t>(value(numbers.back()));
  for (const at::Tensor& number : numbers.slice(0, numbers.size() - 1)) {
    read.emplace_back(value(number), static_cast<TorchNumber::Type>(types % TorchNumber::kTypes));
    types /= TorchNumber::kTypes;
  }
  return read;
}

void lerp(const at::Tensor& self, const at::Tensor& end, const TorchNumber& weight) {
  weight.is_tensor() ? self.lerp_(end, weight.tensor()) : self.lerp_(end, weight.value());
}

// Whether there is a step: not if a gradient is not finite. Unscales the gradients for it, where they are.
bool applies(Lists grads, const Optional& grad_scale, const Optional& found_inf) {
  if (found_inf && value(*found_inf) != 0) return false;
  if (grad_scale) {
    for (const at::Tensor& grad : grads) grad.div_(grad_scale->reshape({}));
  }
  return true;
}

// torch.optim adds 1 to its step, then works with that as a Python float.
double count(const at::Tensor& step) {
  step.add_(1);
  return value(step);
}

at::Tensor descent(const at::Tensor& gradient, bool maximize) { return maximize ? -gradient : gradient; }

at::Tensor decayed(const at::Tensor& gradient, const at::Tensor& parameter, double weight_decay) {
  return weight_decay != 0 ? gradient.add(parameter, weight_decay) : gradient;
}

// torch/optim/adam.py: _single_tensor_adam; with `fused` _fused_adam.
void adam(Lists self, Lists grads, Lists exp_avgs, Lists exp_avg_sqs, Lists maxima, Lists steps, Lists numbers,
          bool decoupled, bool fused, bool maximize, const Optional& grad_scale, const Optional& found_inf) {
  if (!applies(grads, grad_scale, found_inf)) return;
  const auto given = read(numbers);
  const TorchNumber &lr = given[0], &beta1 = given[1], &beta2 = given[2];
  const double eps = given[3].value(), weight_decay = given[4].value();
  if (fused) {
    at::_foreach_add_(steps, 1);
    const auto step = [&](auto kernel) {
      kernel(self, grads, exp_avgs, exp_avg_sqs, maxima, steps, lr.value(), beta1.value(), beta2.value(), weight_decay,
             eps, !maxima.empty(), maximize, std::nullopt, std::nullopt);
    };
    decoupled ? step([](auto&&... all) { at::_fused_adamw_(all...); })
              : step([](auto&&... all) { at::_fused_adam_(all...); });
    return;
  }
  for (std::size_t i = 0; i < self.size(); ++i) {
    at::Tensor grad = descent(grads[i], maximize);
    const double step = count(steps[i]);
    if (decoupled) {
      if (weight_decay != 0) self[i].mul_((1 - lr * given[4]).value());
    } else {
      grad = decayed(grad, self[i], weight_decay);
    }
    lerp(exp_avgs[i], grad, 1 - beta1.to(self[i].scalar_type()));
    exp_avg_sqs[i].mul_(beta2.value()).addcmul_(grad, grad, (1 - beta2).value());
    const double step_size = (lr / (1 - beta1.pow(step))).value();
    const double correction = (1 - beta2.pow(step)).pow(0.5).value();
    if (!maxima.empty()) at::maximum_out(const_cast<at::Tensor&>(maxima[i]), maxima[i], exp_avg_sqs[i]);
    const at::Tensor& squares = maxima.empty() ? exp_avg_sqs[i] : maxima[i];
    self[i].addcdiv_(exp_avgs[i], squares.sqrt().div(correction).add_(eps), -step_size);
  }
}

// torch/optim/sgd.py: _single_tensor_sgd; with `fused` _fused_sgd.
void sgd(Lists self, Lists grads, Lists buffers, Lists started, Lists numbers, bool fused, bool nesterov, bool maximize,
         const Optional& grad_scale, const Optional& found_inf) {
  if (!applies(grads, grad_scale, found_inf)) return;
  const auto given = read(numbers);
  const double lr = given[0].value(), momentum = given[1].value(), weight_decay = given[3].value();
  const bool has_momentum = momentum != 0 && !buffers.empty();
  if (fused) {
    bool first = has_momentum;
    for (const at::Tensor& one : has_momentum ? started : Lists()) first = first && value(one) == 0;
    at::_fused_sgd_(self, grads, has_momentum ? buffers : Lists(), weight_decay, momentum, lr, given[2].value(),
                    nesterov, maximize, first);
    for (const at::Tensor& one : has_momentum ? started : Lists()) one.fill_(1);
    return;
  }
  for (std::size_t i = 0; i < self.size(); ++i) {
    at::Tensor grad = decayed(descent(grads[i], maximize), self[i], weight_decay);
    if (has_momentum) {
      if (value(started[i]) == 0) {
        buffers[i].copy_(grad);
        started[i].fill_(1);
      } else {
        buffers[i].mul_(momentum).add_(grad, (1 - given[2]).value());
      }
      grad = nesterov ? grad.add(buffers[i], momentum) : buffers[i];
    }
    self[i].add_(grad, -lr);
  }
}

// torch/optim/rmsprop.py: _single_tensor_rmsprop.
void rmsprop(Lists self, Lists grads, Lists square_avgs, Lists grad_avgs, Lists buffers, Lists steps, Lists numbers,
             bool maximize, const Optional& grad_scale, const Optional& found_inf) {
  if (!applies(grads, grad_scale, found_inf)) return;
  const auto given = read(numbers);
  const TorchNumber& alpha = given[1];
  const double lr = given[0].value(), eps = given[2].value(), weight_decay = given[3].value(),
               momentum = given[4].value();
  for (std::size_t i = 0; i < self.size(); ++i) {
    steps[i].add_(1);
    const at::Tensor grad = decayed(descent(grads[i], maximize), self[i], weight_decay);
    square_avgs[i].mul_(alpha.value()).addcmul_(grad, grad, (1 - alpha).value());
    at::Tensor average;
    if (grad_avgs.empty()) {
      average = square_avgs[i].sqrt();
    } else {
      lerp(grad_avgs[i], grad, 1 - alpha);
      average = square_avgs[i].addcmul(grad_avgs[i], grad_avgs[i], -1).sqrt_();
    }
    average.add_(eps);
    if (momentum > 0 && !buffers.empty()) {
      buffers[i].mul_(momentum).addcdiv_(grad, average);
      self[i].add_(buffers[i], -lr);
    } else {
      self[i].addcdiv_(grad, average, -lr);
    }
  }
}

// torch/optim/adagrad.py: _single_tensor_adagrad; with `fused` _fused_adagrad.
void adagrad(Lists self, Lists grads, Lists sums, Lists steps, Lists numbers, bool fused, bool maximize,
             const Optional& grad_scale, const Optional& found_inf) {
  if (!applies(grads, grad_scale, found_inf)) return;
  const auto given = read(numbers);
  const TorchNumber &lr = given[0], &lr_decay = given[1];
  const double eps = given[2].value(), weight_decay = given[3].value();
  if (fused) {
    at::_foreach_add_(steps, 1);
    at::_fused_adagrad_(self, grads, sums, steps, lr.value(), lr_decay.value(), weight_decay, eps, maximize);
    return;
  }
  for (std::size_t i = 0; i < self.size(); ++i) {
    const double step = count(steps[i]);
    const at::Tensor grad = decayed(descent(grads[i], maximize), self[i], weight_decay);
    sums[i].addcmul_(grad, grad, 1);
    const double rate = (lr / (1 + (step - 1) * lr_decay)).value();
    self[i].addcdiv_(grad, sums[i].sqrt().add_(eps), -rate);
  }
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(duet, library) {
  const auto define = [&library](const char* name, const char* state, const char* flags) {
    library.def(c10::str(name, "(Tensor(a!)[] self, Tensor(b!)[] grads, ", state, ", Tensor[] numbers, ", flags,
                         ", Tensor? grad_scale, Tensor? found_inf) -> ()")
                    .c_str());
  };
  define("torch_adam_",
         "Tensor(c!)[] exp_avgs, Tensor(d!)[] exp_avg_sqs, Tensor(e!)[] max_exp_avg_sqs, Tensor(f!)[] steps",
         "bool decoupled, bool fused, bool maximize");
  define("torch_sgd_", "Tensor(c!)[] momentum_buffers, Tensor(d!)[] started",
         "bool fused, bool nesterov, bool maximize");
  define("torch_rmsprop_",
         "Tensor(c!)[] square_avgs, Tensor(d!)[] grad_avgs, Tensor(e!)[] momentum_buffers, Tensor(f!)[] steps",
         "bool maximize");
  define("torch_adagrad_", "Tensor(c!)[] sums, Tensor(d!)[] steps", "bool fused, bool maximize");
}

TORCH_LIBRARY_IMPL(duet, CPU, library) {
  library.impl("torch_adam_", adam);
  library.impl("torch_sgd_", sgd);
  library.impl("torch_rmsprop_", rmsprop);
  library.impl("torch_adagrad_", adagrad);
}

TORCH_LIBRARY_IMPL(duet, Autograd, library) {
  for (const char* name : {"torch_adam_", "torch_sgd_", "torch_rmsprop_", "torch_adagrad_"}) {
    library.impl(name, torch::CppFunction::makeFallthrough());
  }
}

namespace {

template <class Function>
auto op(const char* name, Function*) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Function>();
}

using Tensors = std::vector<at::Tensor>;

Tensors numbers_of(const KernelCall& call, const TorchFlags& flags, const Tensors& types) {
  Tensors numbers;
  for (const std::string& name : torch_numbers(flags)) numbers.push_back(call.number(name.c_str()));
  numbers.push_back(types[call.group]);
  return numbers;
}

void step(const KernelCall& call, const TorchFlags& flags, const Tensors& types) {
  const auto slot = [&call](std::size_t index) -> const Tensors& { return call.state[index]; };
  const auto given = [](const at::Tensor& tensor) { return tensor.defined() ? Optional(tensor) : std::nullopt; };
  const Optional grad_scale = given(call.grad_scale), found_inf = given(call.found_inf);
  const Tensors numbers = numbers_of(call, flags, types);
  const Tensors none;
  if (flags.type == "Adam" || flags.type == "AdamW") {
    static const auto typed = op("duet::torch_adam_", &adam);
    typed.call(call.parameters, call.gradients, slot(1), slot(2), flags.amsgrad ? slot(3) : none, slot(0), numbers,
               flags.type == "AdamW", flags.fused, flags.maximize, grad_scale, found_inf);
  } else if (flags.type == "SGD") {
    static const auto typed = op("duet::torch_sgd_", &sgd);
    typed.call(call.parameters, call.gradients, flags.has_momentum ? slot(1) : none,
               flags.has_momentum ? slot(0) : none, numbers, flags.fused, flags.nesterov, flags.maximize, grad_scale,
               found_inf);
  } else if (flags.type == "RMSprop") {
    static const auto typed = op("duet::torch_rmsprop_", &rmsprop);
    const std::size_t after_momentum = flags.has_momentum ? 3 : 2;
    typed.call(call.parameters, call.gradients, slot(1), flags.centered ? slot(after_momentum) : none,
               flags.has_momentum ? slot(2) : none, slot(0), numbers, flags.maximize, grad_scale, found_inf);
  } else {
    static const auto typed = op("duet::torch_adagrad_", &adagrad);
    typed.call(call.parameters, call.gradients, slot(1), slot(0), numbers, flags.fused, flags.maximize, grad_scale,
               found_inf);
  }
}

std::vector<StateSlot> slots_of(const TorchFlags& flags) {
  std::vector<StateSlot> slots = {{.name = "torch_step", .shape = StateSlot::Shape::kScalar}};
  const auto add = [&slots](const char* name) { slots.push_back({.name = name}); };
  if (flags.type == "SGD") {
    if (!flags.has_momentum) return {};
    slots.front().name = "started";
    add("momentum_buffer");
  } else if (flags.type == "RMSprop") {
    add("square_avg");
    if (flags.has_momentum) add("momentum_buffer");
    if (flags.centered) add("grad_avg");
  } else if (flags.type == "Adagrad") {
    add("sum");
  } else {
    add("exp_avg");
    add("exp_avg_sq");
    if (flags.amsgrad) add("max_exp_avg_sq");
  }
  return slots;
}

}  // namespace

std::vector<std::string> torch_numbers(const TorchFlags& flags) {
  if (flags.type == "SGD") return {"lr", "momentum", "dampening", "weight_decay"};
  if (flags.type == "RMSprop") return {"lr", "alpha", "eps", "weight_decay", "momentum"};
  if (flags.type == "Adagrad") return {"lr", "lr_decay", "eps", "weight_decay"};
  return {"lr", "beta1", "beta2", "eps", "weight_decay"};
}

OptimizerKind torch_kind(const TorchFlags& flags, const Tensors& types) {
  return {
      .name = "torch.optim." + flags.type,
      .slots = [flags](const OptimizerOptions&) { return slots_of(flags); },
      .numbers =
          [flags](const OptimizerOptions&) {
            std::map<std::string, double> numbers;
            for (const std::string& name : torch_numbers(flags)) numbers[name] = 0;
            return numbers;
          },
      .kernel = [flags, types](const KernelCall& call, const OptimizerOptions&) { step(call, flags, types); },
      .fused = true,
      .takes_any_layout = !flags.fused,
  };
}

}  // namespace duet::python
