#include <algorithm>
#include <cfenv>
#include <cmath>
#include <tuple>
#include <utility>
#include <vector>
#include <ATen/Parallel.h>
#include <ATen/ops/full.h>
#include <dlfcn.h>
#include "base/detail/bits.h"
#include "graph/kernels/bitexact_kernel.h"
#include "graph/kernels/cpu_kernels.h"
#include "graph/kernels/kernel_tensors.h"
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
};

// The arguments of such an op.
struct AdamwCall {
  static constexpr int64_t kUnit = 16;  // elements; ATen cuts a parameter for threads between those alone

  AdamOp op;
  std::vector<at::Tensor> params, grads, exp_avgs, exp_avg_sqs, steps, numbers;
  at::Tensor grad_scale, found_inf;
  std::vector<int64_t> units_before = {};  // each parameter, and in all

  // False if this step is another: Adam's with decay, of numbers that are not Python's own, or of parameters that have
  // not trained equally long.
  bool run(const PointwiseKernels& kernels) const {
    const auto number = [&](std::size_t i) { return read_device_scalar(numbers[i]); };
    const double decay = number(op.is_torchs ? 4 : 3), eps = number(op.is_torchs ? 3 : 4);
    if ((op.is_adam && decay != 0) || (op.is_torchs && number(5) != 0)) return false;
    if (found_inf.defined() && *floats_of(found_inf) == 1.0F) return true;
    const float before = *floats_of(steps.front());
    for (const at::Tensor& step : steps) {
      if (*floats_of(step) != before) return false;
    }
    const float count = op.is_torchs ? before + 1 : before;  // torch.optim's op counts, too
    for (const at::Tensor& step : steps) *writable_floats_of(step) = count;
    const double lr = number(0), beta1 = number(1), beta2 = number(2);
    const double correction = 1 - std::pow(beta2, double{count});
    AdamwStep work;
    if (op.one_by_one) work.roots = &roots_of_mkl;
    work.grad_scale = floats_of(grad_scale);
    work.decay = static_cast<float>(1 - lr * decay);
    work.weight = static_cast<float>(1 - beta1), work.weight_sq = static_cast<float>(1 - beta2);
    work.beta2 = static_cast<float>(beta2);
    work.bias_sqrt = static_cast<float>(op.one_by_one ? std::pow(correction, 0.5) : std::sqrt(correction));
    work.eps = static_cast<float>(eps);
    work.step = static_cast<float>(-(lr / (1 - std::pow(beta1, double{count}))));
    for_each_part(units_before.back(), units_before.back() * kUnit,
                  [&](int64_t begin, int64_t end) { run_part(kernels, work, begin, end); });
    return true;
  }

  // Of the units of all parameters, one after the other.
  void run_part(const PointwiseKernels& kernels, AdamwStep work, int64_t begin, int64_t end) const {
    for (std::size_t i = 0; i < params.size(); ++i) {
      const int64_t first = std::max(begin - units_before[i], int64_t{0}) * kUnit;
      work.count = std::min((end - units_before[i]) * kUnit, params[i].numel()) - first;
      if (work.count <= 0) continue;
      work.param = writable_floats_of(params[i]) + first, work.grad = writable_floats_of(grads[i]) + first;
      work.exp_avg = writable_floats_of(exp_avgs[i]) + first;
      work.exp_avg_sq = writable_floats_of(exp_avg_sqs[i]) + first;
      kernels.adamw(work);
    }
  }

  // Two parameters that share memory, or have one gradient: their order counts.
  bool any_overlap() const {
    std::vector<std::tuple<const void*, int64_t, int64_t>> places;
    for (const auto* tensors : {&params, &grads, &exp_avgs, &exp_avg_sqs}) {
      for (const at::Tensor& tensor : *tensors) {
        const int64_t begin = tensor.storage_offset();
        if (tensor.numel() > 0)
          places.emplace_back(tensor.storage().unsafeGetStorageImpl(), begin, begin + tensor.numel());
      }
    }
    std::sort(places.begin(), places.end());
    return std::adjacent_find(places.begin(), places.end(), [](const auto& a, const auto& b) {
             return std::get<0>(a) == std::get<0>(b) && std::get<1>(b) < std::get<2>(a);
           }) != places.end();
  }

  void count_units() {
    units_before = {0};
    for (const at::Tensor& param : params)
      units_before.push_back(units_before.back() + (param.numel() + kUnit - 1) / kUnit);
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

// Neither amsgrad nor maximize; ATen's threads, which share each op, end between vectors.
bool find_call(const OpCall& of, const AdamOp& op, AdamwCall& call) {
  const auto list = [&](std::size_t i) { return of.arguments[i].toTensorVector(); };
  const std::size_t scale = op.is_torchs ? 10 : 9, maximize = op.is_torchs ? 9 : 8;
  const bool amsgrad = op.is_torchs ? !list(4).empty() : of.arguments[7].toBool();
  if (amsgrad || of.arguments[maximize].toBool() || list(5).empty()) return false;
  call = {op, list(0), list(1), list(2), list(3), list(5), list(6), of.floats(scale), of.floats(scale + 1)};
  for (std::size_t i = 0; i < call.params.size(); ++i) {
    for (const auto* tensors : {&call.params, &call.grads, &call.exp_avgs, &call.exp_avg_sqs}) {
      if (!is_contiguous_float((*tensors)[i]) || (*tensors)[i].sizes() != call.params[i].sizes()) return false;
    }
    const int64_t elements = call.params[i].numel();
    if (op.one_by_one && is_cut_within_vectors(elements, elements)) return false;
  }
  if (call.any_overlap()) return false;
  call.count_units();
  for (const at::Tensor& step : call.steps) {
    if (!is_contiguous_float(step, 1)) return false;
  }
  const bool known =
      (of.lacks(scale) || call.grad_scale.defined()) && (of.lacks(scale + 1) || call.found_inf.defined());
  const bool scaled = call.grad_scale.defined() || call.found_inf.defined();
  return known && !(op.is_torchs && scaled);
}

struct TrialStep {
  double steps;
  double lr, beta1, beta2, decay, eps;
  bool scaled;
};

// The same step of both on parameters of many lengths.
bool steps_alike(const PointwiseKernels& kernels, const AdamOp& op, const TrialStep& trial, TrialNumbers numbers) {
  std::vector<int64_t> lengths = {1000, 4099};
  const bool shared = at::get_num_threads() > 1;  // by threads, on which each length waits; 40000 is worth some
  if (shared) lengths = {1, 1000, op.one_by_one ? 1024 * 40 : 40000};
  for (int64_t length = shared ? 17 : 1; length < (shared ? 33 : 70); ++length) lengths.push_back(length);
  std::vector<std::vector<at::Tensor>> theirs(4), ours(4);
  uint64_t seed = 0;
  for (std::size_t slot = 0; slot < theirs.size(); ++slot) {
    for (const int64_t length : lengths) {
      theirs[slot].push_back(trial_tensor({length}, numbers, ++seed));
      ours[slot].push_back(theirs[slot].back().clone());
    }
  }
  const auto steps = [&] { return std::vector<at::Tensor>(1, at::full({}, trial.steps, at::kFloat)); };
  AdamwCall call{op, ours[0], ours[1], ours[2], ours[3], steps(), {}, {}, {}};
  std::vector<double> given = {trial.lr, trial.beta1, trial.beta2, trial.decay, trial.eps};
  if (op.is_torchs) given = {trial.lr, trial.beta1, trial.beta2, trial.eps, trial.decay, 0};
  for (const double number : given) call.numbers.push_back(at::full({}, number, at::kDouble));
  if (trial.scaled) call.grad_scale = at::full({}, 3.7, at::kFloat);
  call.count_units();
  call.run(kernels);

  torch::jit::Stack stack;
  for (const auto& slot : theirs) stack.emplace_back(slot);
  stack.emplace_back(std::vector<at::Tensor>());
  std::vector<at::Tensor> counts;
  for (std::size_t i = 0; i < lengths.size(); ++i) counts.push_back(steps().front());
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
  for (std::size_t slot = 0; slot < theirs.size(); ++slot) {
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      if (!same_bits(theirs[slot][i], ours[slot][i])) return false;
    }
  }
  return true;
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
  const KernelSettings settings = kernel_settings();
  const PointwiseKernels& pointwise = cpu_kernels().pointwise;
  const bool may_run = pointwise.adamw != nullptr && settings.rounding == FE_TONEAREST && threads_round_alike();
  if (!may_run || settings.flushes_denormals) return;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    for (const AdamOp& op : kOps) {
      AdamwCall call;
      if (!is_of(calls[i], op) || !find_call(calls[i], op, call)) continue;
      static Trials<std::pair<const AdamOp*, int>, bool> trials;
      if (trials.of({&op, settings.threads}, kernels, [&] { return step_is_bitexact(pointwise, op); }))
        kernels.of_call[i] = {[call = std::move(call), aten = calls[i]] {
                                if (!call.run(cpu_kernels().pointwise)) aten.run_as_aten();
                              },
                              "bit-exact AdamW"};
    }
  }
}

}  // namespace duet
