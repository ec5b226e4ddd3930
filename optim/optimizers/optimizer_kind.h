#pragma once

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>
#include <ATen/core/Tensor.h>
#include "../../base/batch.h"

namespace duet {

class DeviceHyperParameters;
class OptimizerOptions;

[[noreturn]] void throw_state_index(std::size_t index, std::size_t size);

// A list whose indices are checked: a kernel easily takes [parameter][slot] for [slot][parameter].
template <class T>
struct CheckedList : std::vector<T> {
  T& operator[](std::size_t index) { return const_cast<T&>(std::as_const(*this)[index]); }
  const T& operator[](std::size_t index) const {
    if (index >= this->size()) throw_state_index(index, this->size());
    return std::vector<T>::operator[](index);
  }
};

// The tensors of one kernel call: parameters of one group that have the same number of steps behind them.
struct KernelCall {
  std::vector<at::Tensor> parameters;
  // The very tensors that parameters show as grad(): of the loss itself; for a fused kernel laid out as their
  // parameters, and still to be divided by grad_scale.
  std::vector<at::Tensor> gradients;
  CheckedList<CheckedList<at::Tensor>> state;  // by slot, in the order of the optimizer's slots, then by parameter
  at::Tensor step;                             // float32, 0-dim: steps of these parameters, this one included
  const DeviceHyperParameters* numbers = nullptr;
  std::size_t group = 0;
  // Fused kernels only: the kernel divides gradients by grad_scale and does nothing if found_inf is 1. Float32, one
  // element, or undefined.
  at::Tensor grad_scale, found_inf;

  // A hyper-parameter on the device: 0-dim, float64 on the CPU, float32 elsewhere.
  const at::Tensor& number(const char* name) const;
  // Its value when the step began, for kernels that take it from the host (CUDA's): a captured step freezes it.
  double host_number(const char* name) const;
};

// A tensor that an optimizer keeps for every parameter, under the name that PyTorch's state_dict gives it.
struct StateSlot {
  // Like the parameter; 0-dim float32; a number per row (the last dimension is 1) or per column (the one before is).
  enum class Shape { kParameter, kScalar, kRows, kColumns };

  std::string name;
  Shape shape = Shape::kParameter;
  double initial = 0;
  // Which parameters have it; null: all. The others hold an undefined tensor at its place in KernelCall::state.
  bool (*kept)(const at::Tensor& parameter) = nullptr;
};

// The options that may change during a run: every single number, and betas as beta1 and beta2.
std::map<std::string, double> numbers_in(const OptimizerOptions& options);

// One optimizer: what it keeps, the numbers that may change during a run, and its step. One of your own goes into
// OptimizerOptions; groups, schedules, skipped steps, checkpoints, narrow dtypes and capture work as for the others.
struct OptimizerKind {
  std::string name;
  // In the order of KernelCall::state. Depends on the flags ("centered" adds "grad_avg", ...).
  std::function<std::vector<StateSlot>(const OptimizerOptions& options)> slots;
  // Start values; "lr" is among them.
  std::function<std::map<std::string, double>(const OptimizerOptions& options)> numbers = numbers_in;
  // The step. Reads nothing to the host, uses no host number but the flags, and changes only parameters and state, so
  // that it can be captured. The parameters of a call have one dtype and device and keep the same state; a step makes
  // as many calls as it takes.
  std::function<void(const KernelCall& call, const OptimizerOptions& options)> kernel;
  // Throws ConfigError for options or parameters that this optimizer cannot take; empty: takes all valid ones.
  std::function<void(const OptimizerOptions& options, const NamedTensors& parameters)> check{};
  // The kernel divides gradients by KernelCall::grad_scale and skips by found_inf itself.
  bool fused = false;
  // The same step over tensors, for a device whose fused kernel takes from the host what a step needs from the device.
  // Without one, schedules of other numbers than lr are refused there.
  std::function<void(const KernelCall& call, const OptimizerOptions& options)> unfused{};
  // The kernel takes gradients of any layout and strides (sparse ones of an Embedding), where nothing clips, scales or
  // checks them.
  bool takes_any_layout = false;
};

extern const OptimizerKind kSgd, kAdam, kAdamw, kAdagrad;  // over ATen's fused kernels: fused.cpp
// Over tensors: unfused.cpp, the others each in a file of its own.
extern const OptimizerKind kRmsprop, kNadam, kRadam, kLion, kAdadelta, kAdamax, kAsgd, kRprop;
extern const OptimizerKind kAdafactor, kMuon, kSparseAdam;

// The kind called `name` ("RMSprop", ...), or null.
const OptimizerKind* find_optimizer_kind(const std::string& name);
// The one of the options' own, or the one of their type; null for LBFGS.
const OptimizerKind* find_optimizer_kind(const OptimizerOptions& options);

// For OptimizerKind::slots: these, whatever the options.
inline auto always(std::vector<StateSlot> slots) {
  return [slots = std::move(slots)](const OptimizerOptions&) { return slots; };
}

}  // namespace duet

// The steps that optimizers over tensors have in common. Each rounds as torch.optim's single-tensor code does, with its
// Python numbers as 0-dim tensors: `x.add(y, alpha=a)` becomes addcmul(x, y, a), which ATen computes alike.
namespace duet::kernel_math {

using Tensors = std::vector<at::Tensor>;

// Whether the parameters are float16 or bfloat16.
bool is_narrow(const KernelCall& call);
// Steps float32 copies of the call's tensors and writes them back, rounded once. In bfloat16 0.999 is 1: the arithmetic
// of a moving average would stand still there.
void step_in_float32(const KernelCall& call, const std::function<void(const KernelCall& wide)>& step);

// A hyper-parameter in float64, for arithmetic between numbers.
at::Tensor number64(const KernelCall& call, const char* name);
// `number` in the dtype of `tensors`: a 0-dim tensor of another dtype would change that of a 0-dim parameter.
at::Tensor cast_like(const at::Tensor& number, const Tensors& tensors);

// The gradient to descend along: negated if `maximize`, with weight_decay * parameter added if `l2_decay`.
Tensors descent_gradients(const KernelCall& call, bool maximize, bool l2_decay);
// parameter *= 1 - lr * weight_decay
void decay_parameters(const KernelCall& call);

// self += factor * other
void add_scaled_(const Tensors& self, const Tensors& other, const at::Tensor& factor);
// self += factor * numerator / denominator
void add_quotient_(const Tensors& self, const Tensors& numerator, const Tensors& denominator, const at::Tensor& factor);
// self += weight * (end - self)
void lerp_(const Tensors& self, const Tensors& end, const at::Tensor& weight);
// average = beta * average + (1 - beta) * gradient^2
void average_squares_(const Tensors& averages, const Tensors& gradients, const at::Tensor& beta);

// 1 - beta^step
at::Tensor bias_correction(const at::Tensor& beta, const at::Tensor& step);

// Adam in two parts, between which eps is added: the averages of gradients and squares, in `slot` and the next, take
// the gradients in; what is returned is the root of the latter (with amsgrad of the largest one so far, in the slot
// after), made up for its start at 0.
Tensors adam_roots(const KernelCall& call, const Tensors& gradients, std::size_t slot, bool amsgrad = false);
// parameter -= lr * average / denominator, the average made up for its start.
void adam_move(const KernelCall& call, const Tensors& averages, const Tensors& denominators);

}  // namespace duet::kernel_math
