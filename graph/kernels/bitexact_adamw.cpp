#include <algorithm>
#include <cfenv>
#include <cmath>
#include <tuple>
#include <utility>
#include <vector>
#include <ATen/Parallel.h>
#include <ATen/ops/full.h>
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

// The arguments of duet::fused_adamw_ and duet::fused_adam_ (optim/optimizers/fused.cpp).
struct AdamwCall {
  static constexpr int64_t kUnit = 16;  // elements; ATen cuts a parameter for threads between those alone

  std::vector<at::Tensor> params, grads, exp_avgs, exp_avg_sqs, numbers;
  at::Tensor step, grad_scale, found_inf;
  std::vector<int64_t> units_before = {};  // each parameter, and in all
  bool is_adam = false;

  // False if it is Adam's and decays weights now.
  bool run(const PointwiseKernels& kernels) const {
    const auto number = [&](std::size_t i) { return read_device_scalar(numbers[i]); };
    if (is_adam && number(3) != 0) return false;
    if (found_inf.defined() && *floats_of(found_inf) == 1.0F) return true;
    const double lr = number(0), beta1 = number(1), beta2 = number(2), steps = read_device_scalar(step);
    AdamwStep work;
    work.grad_scale = floats_of(grad_scale);
    work.decay = static_cast<float>(1 - lr * number(3));
    work.weight = static_cast<float>(1 - beta1), work.weight_sq = static_cast<float>(1 - beta2);
    work.beta2 = static_cast<float>(beta2);
    work.bias_sqrt = static_cast<float>(std::sqrt(1 - std::pow(beta2, steps)));
    work.eps = static_cast<float>(number(4));
    work.step = static_cast<float>(-(lr / (1 - std::pow(beta1, steps))));
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

// Neither amsgrad nor maximize, all steps the same tensor.
bool find_call(const OpCall& op, AdamwCall& call) {
  const bool is_adam = op.is("duet::fused_adam_", "");
  if (!is_adam && !op.is("duet::fused_adamw_", "")) return false;
  if (op.arguments[7].toBool() || op.arguments[8].toBool()) return false;
  const auto list = [&](std::size_t i) { return op.arguments[i].toTensorVector(); };
  call = {list(0), list(1), list(2), list(3), list(6), {}, op.floats(9), op.floats(10)};
  for (std::size_t i = 0; i < call.params.size(); ++i) {
    for (const auto* tensors : {&call.params, &call.grads, &call.exp_avgs, &call.exp_avg_sqs}) {
      if (!is_contiguous_float((*tensors)[i]) || (*tensors)[i].sizes() != call.params[i].sizes()) return false;
    }
  }
  if (call.any_overlap()) return false;
  call.count_units();
  call.is_adam = is_adam;
  const std::vector<at::Tensor> steps = list(5);
  if (steps.empty()) return false;
  call.step = steps.front();
  const bool alike = std::all_of(steps.begin(), steps.end(), [&](const auto& step) { return step.is_same(call.step); });
  const bool known = (op.lacks(9) || call.grad_scale.defined()) && (op.lacks(10) || call.found_inf.defined());
  return alike && known && call.step.scalar_type() == at::kFloat;
}

struct TrialStep {
  double steps;
  std::vector<double> numbers;
  bool scaled;
  const char* op = "duet::fused_adamw_";
};

// The same step of both on parameters of many lengths.
bool steps_alike(const PointwiseKernels& kernels, const TrialStep& trial, TrialNumbers numbers) {
  std::vector<int64_t> lengths = {1000, 4099};
  const bool shared = at::get_num_threads() > 1;  // by threads, on which each length waits; 40000 is worth some
  if (shared) lengths = {1, 1000, 40000};
  for (int64_t length = shared ? 17 : 1; length < (shared ? 33 : 70); ++length) lengths.push_back(length);
  std::vector<std::vector<at::Tensor>> theirs(4), ours(4);
  uint64_t seed = 0;
  for (std::size_t slot = 0; slot < theirs.size(); ++slot) {
    for (const int64_t length : lengths) {
      theirs[slot].push_back(trial_tensor({length}, numbers, ++seed));
      ours[slot].push_back(theirs[slot].back().clone());
    }
  }
  AdamwCall call{ours[0], ours[1], ours[2], ours[3], {}, at::full({}, trial.steps, at::kFloat), {}, {}};
  for (const double number : trial.numbers) call.numbers.push_back(at::full({}, number, at::kDouble));
  if (trial.scaled) call.grad_scale = at::full({}, 3.7, at::kFloat);
  call.count_units();
  call.run(kernels);

  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(trial.op, "");
  torch::jit::Stack stack;
  for (const auto& slot : theirs) stack.emplace_back(slot);
  stack.emplace_back(std::vector<at::Tensor>());
  stack.emplace_back(std::vector<at::Tensor>(lengths.size(), call.step));
  stack.emplace_back(call.numbers);
  for (const bool flag : {false, false}) stack.emplace_back(flag);
  stack.push_back(trial.scaled ? c10::IValue(call.grad_scale) : c10::IValue());
  stack.emplace_back();
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
  for (std::size_t slot = 0; slot < theirs.size(); ++slot) {
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      if (!same_bits(theirs[slot][i], ours[slot][i])) return false;
    }
  }
  return true;
}

}  // namespace

bool adamw_is_bitexact(const PointwiseKernels& kernels) {
  if (kernels.adamw == nullptr) return false;
  const TrialGuard guard;
  for (const TrialStep& trial :
       {TrialStep{1, {1e-3, 0.9, 0.999, 0.01, 1e-8}, false}, TrialStep{7, {0.1, 0.9, 0.95, 0, 1e-8}, true},
        TrialStep{1e5, {1e-3, 0.3, 0.999, 0.5, 0}, false},
        TrialStep{3, {0.01, 0.9, 0.99, 0, 1e-8}, true, "duet::fused_adam_"},
        TrialStep{1e5, {1e-3, 0.3, 0.999, 0, 0}, false, "duet::fused_adam_"}}) {
    for (const TrialNumbers numbers : kTrialNumbersWithNan) {
      if (!steps_alike(kernels, trial, numbers)) return false;
    }
  }
  return true;
}

void find_bitexact_adamw(const std::vector<OpCall>& calls, BitexactKernels& kernels) {
  const KernelSettings settings = kernel_settings();
  if (settings.flushes_denormals || settings.rounding != FE_TONEAREST || !threads_round_alike()) return;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    AdamwCall call;
    if (!find_call(calls[i], call)) continue;
    static Trials<int, bool> trials;
    if (trials.of(settings.threads, kernels, [] { return adamw_is_bitexact(cpu_kernels().pointwise); }))
      kernels.of_call[i] = {[call = std::move(call), aten = calls[i]] {
                              if (!call.run(cpu_kernels().pointwise)) aten.run_as_aten();
                            },
                            "bit-exact AdamW"};
  }
}

}  // namespace duet
