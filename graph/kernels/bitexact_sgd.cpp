#include <utility>
#include <vector>
#include <ATen/ops/full.h>
#include "graph/kernels/bitexact_kernel.h"
#include "graph/kernels/cpu_kernels.h"
#include "graph/kernels/kernel_tensors.h"
#include "graph/kernels/parameter_lists.h"
#include "optim/detail/device_hyper_parameters.h"

// The step of torch.optim.SGD, which calls some ops for each parameter, over all of them at once.

namespace duet {

namespace {

constexpr const char* kName = "duet::torch_sgd_";  // python/binding/torch_kernels.cpp

struct SgdCall {
  ParameterLists lists;  // parameters, gradients, and momentum buffers if there are some
  std::vector<at::Tensor> started, numbers;
  bool nesterov = false;

  // False, and nothing has changed, if this step is another: the first one of a buffer, or one of numbers that are not
  // Python's own or too large for a float.
  bool run(const PointwiseKernels& kernels) const {
    const auto number = [&](std::size_t i) { return read_device_scalar(numbers[i]); };
    const double momentum = number(1), decay = number(3);
    const bool has_momentum = momentum != 0 && !started.empty();
    if (number(4) != 0) return false;
    for (std::size_t i = 0; i < 4; ++i) {
      if (!fits_float(number(i))) return false;
    }
    for (const at::Tensor& one : started) {
      if (has_momentum && read_device_scalar(one) == 0) return false;
    }
    SgdStep work;
    work.decays = decay != 0;
    work.nesterov = nesterov;
    work.decay = static_cast<float>(decay), work.momentum = static_cast<float>(momentum);
    work.weight = static_cast<float>(1 - number(2)), work.step = static_cast<float>(-number(0));
    lists.for_each_range([&](std::size_t i, int64_t first, int64_t count) {
      SgdStep part = work;
      part.param = lists.floats(0, i) + first, part.grad = lists.floats(1, i) + first;
      if (has_momentum) part.buffer = lists.floats(2, i) + first;
      part.count = count;
      kernels.sgd(part);
    });
    return true;
  }
};

bool find_call(const OpCall& of, SgdCall& call) {
  const auto list = [&](std::size_t i) { return of.arguments[i].toTensorVector(); };
  const auto flag = [&](std::size_t i) { return of.arguments[i].toBool(); };
  const bool is_fused = flag(5), maximizes = flag(7);
  if (is_fused || maximizes || list(0).empty() || !of.lacks(8) || !of.lacks(9)) return false;
  std::vector<std::vector<at::Tensor>> lists = {list(0), list(1)};
  if (!list(2).empty()) lists.push_back(list(2));
  call = {ParameterLists(std::move(lists)), list(3), list(4), flag(6)};
  return call.lists.fit() && !call.lists.are_cut_within_vectors();
}

struct TrialStep {
  double lr, momentum, dampening, decay;
  bool nesterov;
};

bool steps_alike(const PointwiseKernels& kernels, const TrialStep& trial, TrialNumbers numbers) {
  const auto theirs = trial_lists(3, numbers, 40960), ours = copies_of(theirs);
  const std::vector<at::Tensor> started(ours[0].size(), at::full({}, 1, at::kFloat));
  SgdCall call{ParameterLists(ours), started, {}, trial.nesterov};
  for (const double number : {trial.lr, trial.momentum, trial.dampening, trial.decay, 0.0})
    call.numbers.push_back(at::full({}, number, at::kDouble));
  if (!call.run(kernels)) return false;

  torch::jit::Stack stack;
  for (const auto& list : theirs) stack.emplace_back(list);
  stack.emplace_back(started);
  stack.emplace_back(call.numbers);
  for (const bool flag : {false, trial.nesterov, false}) stack.emplace_back(flag);
  for (int i = 0; i < 2; ++i) stack.emplace_back();
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(kName, "");
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
  return same_lists(theirs, ours);
}

bool sgd_is_bitexact(const PointwiseKernels& kernels) {
  const TrialGuard guard;
  for (const TrialStep& trial :
       {TrialStep{0.1, 0, 0, 0, false}, TrialStep{0.03, 0, 0, 0.3, false}, TrialStep{0.1, 0.9, 0, 0.01, false},
        TrialStep{0.7, 0.3, 0.4, 0, false}, TrialStep{0.1, 0.9, 0, 1e-3, true}}) {
    for (const TrialNumbers numbers : kTrialNumbersWithNan) {
      if (!steps_alike(kernels, trial, numbers)) return false;
    }
  }
  return true;
}

}  // namespace

void find_bitexact_sgd(const std::vector<OpCall>& calls, BitexactKernels& kernels) {
  const PointwiseKernels& pointwise = cpu_kernels().pointwise;
  if (pointwise.sgd == nullptr || !rounding_is_default()) return;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    SgdCall call;
    if (!calls[i].is(kName, "") || !find_call(calls[i], call)) continue;
    static Trials<int, bool> trials;
    if (trials.of(kernel_settings().threads, kernels, [&] { return sgd_is_bitexact(pointwise); }))
      kernels.of_call[i] = parameter_kernel(std::move(call), calls[i], "bit-exact SGD");
  }
}

}  // namespace duet
