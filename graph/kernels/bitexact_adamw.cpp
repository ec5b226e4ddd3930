#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>
#include <ATen/ops/full.h>
#include <dlfcn.h>
#include "base/detail/bits.h"
#include "graph/kernels/bitexact_kernel.h"
#include "graph/kernels/cpu_kernels.h"
#include "graph/kernels/kernel_tensors.h"
#include "graph/kernels/parameter_lists.h"
#include "graph/kernels/trial_data.h"
#include "optim/detail/device_hyper_parameters.h"

// The step of AdamW over all parameters at once: without the calls, checks and powers that ATen has for each. Without
// weight decay Adam's is the same.

namespace duet {

namespace {

// Those of MKL inside LibTorch, which ATen takes for sqrt(): not all are rounded to the nearest. Null without MKL.
using MklRoots = void (*)(int count, const float* x, float* y, unsigned long long mode);
MklRoots mkl_roots() {
  static const auto found = reinterpret_cast<MklRoots>(dlsym(RTLD_DEFAULT, "vmsSqrt"));
  return found;
}
void roots_of_mkl(const float* x, float* y, int64_t count) {
  constexpr unsigned long long kAtensMode = 0x2 | 0x100 | 0x140000;  // high accuracy, no errors, denormals kept
  mkl_roots()(static_cast<int>(count), x, y, kAtensMode);
}

// Which op, and where its arguments stand.
struct AdamOp {
  const char* name;
  bool is_adam = false;     // which decays gradients, and not weights
  bool is_torchs = false;   // python/binding/torch_kernels.cpp; else optim/optimizers/fused.cpp
  bool one_by_one = false;  // as torch.optim's loop over parameters; else as ATen's fused kernel

  std::size_t decay() const { return is_torchs ? 4 : 3; }  // of the numbers
  std::size_t eps() const { return is_torchs ? 3 : 4; }
  std::size_t types() const { return 5; }  // torch.optim's: 0 if all are Python's own
  std::size_t maximize() const { return is_torchs ? 9 : 8; }
  std::size_t scale() const { return maximize() + 1; }
};

// The arguments of such an op.
struct AdamwCall {
  AdamOp op;
  ParameterLists lists;  // parameters, gradients, averages of these and of their squares
  std::vector<at::Tensor> steps, numbers;
  at::Tensor grad_scale{}, found_inf{};

  // False, and nothing has changed, if this step is another: Adam's with decay, of numbers that are not Python's own or
  // too large for a float, of parameters that have not trained equally long, or without an average of gradients, where
  // ATen multiplies by zeros of either sign.
  bool run(const PointwiseKernels& kernels) const {
    const auto number = [&](std::size_t i) { return read_device_scalar(numbers[i]); };
    const float before = *floats_of(steps.front());
    for (const at::Tensor& step : steps) {
      if (*floats_of(step) != before) return false;
    }
    const float count = op.is_torchs ? before + 1 : before;  // torch.optim's op counts, too
    const double lr = number(0), beta1 = number(1), beta2 = number(2), decay = number(op.decay());
    const double correction = 1 - std::pow(beta2, double{count}), step = -(lr / (1 - std::pow(beta1, double{count})));
    const auto weight = static_cast<float>(1 - beta1);
    if ((op.is_adam && decay != 0) || (op.is_torchs && number(op.types()) != 0)) return false;
    if (!fits_float(step) || weight == 1) return false;

    if (found_inf.defined() && *floats_of(found_inf) == 1.0F) return true;
    for (const at::Tensor& one : steps) *writable_floats_of(one) = count;
    AdamwStep work;
    if (op.one_by_one) work.roots = &roots_of_mkl;
    work.grad_scale = floats_of(grad_scale);
    work.decay = static_cast<float>(1 - lr * decay);
    work.weight = weight, work.weight_sq = static_cast<float>(1 - beta2);
    work.beta2 = static_cast<float>(beta2);
    work.bias_sqrt = static_cast<float>(op.one_by_one ? std::pow(correction, 0.5) : std::sqrt(correction));
    work.eps = static_cast<float>(number(op.eps()));
    work.step = static_cast<float>(step);
    lists.for_each_range([&](std::size_t i, int64_t first, int64_t count) {
      AdamwStep part = work;
      part.param = lists.floats(0, i) + first, part.grad = lists.floats(1, i) + first;
      part.exp_avg = lists.floats(2, i) + first, part.exp_avg_sq = lists.floats(3, i) + first;
      part.count = count;
      kernels.adamw(part);
    });
    return true;
  }
};

constexpr AdamOp kOps[] = {{"duet::fused_adamw_"},
                           {"duet::fused_adam_", true},
                           {"duet::torch_adam_", false, true, false},
                           {"duet::torch_adam_", true, true, false},
                           {"duet::torch_adam_", false, true, true},
                           {"duet::torch_adam_", true, true, true}};

bool is_of(const OpCall& call, const AdamOp& op) {
  if (!call.is(op.name, "")) return false;
  const auto flag = [&](std::size_t i) { return call.arguments[i].toBool(); };
  if (op.one_by_one && mkl_roots() == nullptr) return false;
  return !op.is_torchs || (flag(7) != op.is_adam && flag(8) != op.one_by_one);
}

// Neither amsgrad nor maximize, nor scaled gradients of torch.optim.
bool find_call(const OpCall& of, const AdamOp& op, AdamwCall& call) {
  const auto list = [&](std::size_t i) { return of.arguments[i].toTensorVector(); };
  const bool amsgrad = op.is_torchs ? !list(4).empty() : of.arguments[7].toBool();
  if (amsgrad || of.arguments[op.maximize()].toBool() || list(5).empty()) return false;
  for (const std::size_t i : {op.scale(), op.scale() + 1}) {
    if (!of.lacks(i) && (op.is_torchs || !of.floats(i).defined())) return false;
  }
  call = {op,
          ParameterLists({list(0), list(1), list(2), list(3)}),
          list(5),
          list(6),
          of.floats(op.scale()),
          of.floats(op.scale() + 1)};
  for (const at::Tensor& step : call.steps) {
    if (!is_contiguous_float(step, 1)) return false;
  }
  return call.lists.fit() && !(op.one_by_one && call.lists.are_cut_within_vectors());
}

struct TrialStep {
  double steps;
  double lr, beta1, beta2, decay, eps;
  bool scaled;
};

// The same step of both on parameters of many lengths.
bool steps_alike(const PointwiseKernels& kernels, const AdamOp& op, const TrialStep& trial, TrialNumbers numbers) {
  const auto theirs = trial_lists(4, numbers, op.one_by_one ? 40960 : 40000), ours = copies_of(theirs);
  const auto steps = [&] { return std::vector<at::Tensor>(1, at::full({}, trial.steps, at::kFloat)); };
  AdamwCall call{op, ParameterLists(ours), steps(), {}};
  std::vector<double> given = {trial.lr, trial.beta1, trial.beta2, trial.decay, trial.eps};
  if (op.is_torchs) given = {trial.lr, trial.beta1, trial.beta2, trial.eps, trial.decay, 0};
  for (const double number : given) call.numbers.push_back(at::full({}, number, at::kDouble));
  if (trial.scaled) call.grad_scale = at::full({}, 3.7, at::kFloat);
  if (!call.run(kernels)) return false;

  torch::jit::Stack stack;
  for (const auto& slot : theirs) stack.emplace_back(slot);
  stack.emplace_back(std::vector<at::Tensor>());
  std::vector<at::Tensor> counts;
  for (std::size_t i = 0; i < ours[0].size(); ++i) counts.push_back(steps().front());
  stack.emplace_back(counts);
  stack.emplace_back(call.numbers);
  if (op.is_torchs) stack.emplace_back(!op.is_adam);
  if (op.is_torchs) stack.emplace_back(!op.one_by_one);
  stack.emplace_back(false);
  if (!op.is_torchs) stack.emplace_back(false);
  stack.push_back(trial.scaled ? c10::IValue(call.grad_scale) : c10::IValue());
  stack.emplace_back();
  const auto handle = c10::Dispatcher::singleton().findSchemaOrThrow(op.name, "");
  handle.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
  return same_lists(theirs, ours) && same_bits(call.steps.front(), counts.front());
}

bool step_is_bitexact(const PointwiseKernels& kernels, const AdamOp& op) {
  const TrialGuard guard;
  for (TrialStep trial :
       {TrialStep{1, 1e-3, 0.9, 0.999, 0.01, 1e-8, false}, TrialStep{7, 0.1, 0.9, 0.95, 0, 1e-8, true},
        TrialStep{1e5, 1e-3, 0.3, 0.999, 0.5, 0, false}}) {
    if (op.is_adam) trial.decay = 0;
    if (op.is_torchs) trial.scaled = false;
    for (const TrialNumbers numbers : kTrialNumbersWithNan) {
      if (!steps_alike(kernels, op, trial, numbers)) return false;
    }
  }
  return true;
}

}  // namespace

bool adamw_is_bitexact(const PointwiseKernels& kernels) {
  return kernels.adamw != nullptr && step_is_bitexact(kernels, kOps[0]) && step_is_bitexact(kernels, kOps[1]);
}

void find_bitexact_adamw(const std::vector<OpCall>& calls, BitexactKernels& kernels) {
  const PointwiseKernels& pointwise = cpu_kernels().pointwise;
  if (pointwise.adamw == nullptr || !rounding_is_default()) return;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    for (const AdamOp& op : kOps) {
      AdamwCall call;
      if (!is_of(calls[i], op) || !find_call(calls[i], op, call)) continue;
      static Trials<std::pair<const AdamOp*, int>, bool> trials;
      if (trials.of({&op, kernel_settings().threads}, kernels, [&] { return step_is_bitexact(pointwise, op); }))
        kernels.of_call[i] = parameter_kernel(std::move(call), calls[i], "bit-exact AdamW");
    }
  }
}

}  // namespace duet
