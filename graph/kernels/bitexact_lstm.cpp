#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include "base/detail/bits.h"
#include "base/detail/stack_tensors.h"
#include "graph/kernels/bitexact_kernel.h"
#include "graph/kernels/kernel_tensors.h"
#include "graph/kernels/lstm_layer.h"
#include "graph/kernels/trial_data.h"

// Layers of LSTMs that train: oneDNN's arithmetic without its layouts, and without what it prepares for each call.

namespace duet {

namespace {

// A workspace is made where gradients are on.
void forward_as_aten(const OpCall& call) {
  const at::AutoGradMode with_workspace(true);
  call.run_as_aten();
}

// Where the workspace at hand is duet's, with one of oneDNN's.
void backward_as_aten(const LstmCalls& calls, bool is_own) {
  if (!is_own) return calls.backward.run_as_aten();
  OpCall forward = calls.forward, backward = calls.backward;
  const at::Tensor workspace = at::empty_like(forward.result(3));
  forward.results = {at::Tensor(), at::Tensor(), at::Tensor(), workspace};
  forward_as_aten(forward);
  backward.arguments[LstmCalls::kWorkspace] = workspace;
  backward.run_as_aten();
}

struct Filling {
  TrialNumbers numbers;
  float scale;  // by which gates are near 0 or far from it
  uint64_t seed = 0;
};

at::Tensor filled(const at::Tensor& like, const Filling& filling) {
  const at::Tensor tensor = trial_tensor(like, filling.numbers, filling.seed);
  float* const values = writable_floats_of(tensor);
  for (int64_t i = 0; i < tensor.numel(); ++i) values[i] *= filling.scale;
  return tensor;
}

std::vector<at::Tensor> like(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> others;
  for (const at::Tensor& tensor : tensors) others.push_back(at::empty_like(tensor));
  return others;
}

// The calls in memory of their own, filled: the same for the same filling.
LstmCalls copies_of(const LstmCalls& calls, Filling filling) {
  LstmCalls copies = calls;
  const auto fill = [&](const at::Tensor& tensor) {
    ++filling.seed;
    return filled(tensor, filling);
  };
  for (std::size_t i = 0; i < LstmCalls::kInputs; ++i) {
    copies.forward.arguments[i] = copies.backward.arguments[i] = fill(calls.input(i));
  }
  copies.forward.results = like(calls.forward.results), copies.backward.results = like(calls.backward.results);
  for (std::size_t i = 0; i < 3; ++i) {
    copies.backward.arguments[LstmCalls::kInputs + i] = copies.forward.results[i];
    if (calls.grad(i).defined()) copies.backward.arguments[LstmCalls::kFirstGrad + i] = fill(calls.grad(i));
  }
  copies.backward.arguments[LstmCalls::kWorkspace] = copies.forward.results[3];
  return copies;
}

bool gives_atens_bits(const LstmCalls& calls, const Filling& filling) {
  const LstmCalls ours = copies_of(calls, filling), theirs = copies_of(calls, filling);
  const auto same = [](const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b, std::size_t count) {
    return std::equal(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(count), b.begin(), same_bits);
  };
  const bool may_refuse = filling.numbers > TrialNumbers::kDenormal;
  if (!ours.fit() || !ours.run_forward()) return may_refuse;
  forward_as_aten(theirs.forward);
  if (!same(ours.forward.results, theirs.forward.results, 3)) return false;
  if (!ours.run_backward()) return may_refuse;
  backward_as_aten(theirs, false);
  return same(ours.backward.results, theirs.backward.results, theirs.backward.results.size());
}

bool are_faster(const LstmCalls& calls) {
  const LstmCalls ours = copies_of(calls, {TrialNumbers::kPlain, 1.0F / 16});
  LstmCalls theirs = ours;
  forward_as_aten(theirs.forward);
  theirs.backward.arguments[LstmCalls::kWorkspace] =
      at::empty_like(theirs.forward.result(3)).copy_(ours.forward.results[3]);
  theirs.forward.results.clear(), theirs.backward.results.clear();
  return takes_less_time([&] { ours.run_forward() && ours.run_backward(); },
                         [&] {
                           forward_as_aten(theirs.forward);
                           theirs.backward.run_as_aten();
                         });
}

bool are_bitexact(const LstmCalls& calls) {
  const TrialGuard guard;
  constexpr uint64_t kSeedsApart = 100;
  if (!are_faster(calls)) return false;
  for (const TrialNumbers numbers : kTrialNumbersWithNan) {
    if (!gives_atens_bits(calls, {numbers, 1.0F})) return false;
  }
  if (!gives_atens_bits(calls, {TrialNumbers::kDenormal, 1.0F})) return false;
  uint64_t seed = 0;
  for (const float scale : {1.0F, 1.0F / 4, 1.0F / 16, 1.0F / 64, 1.0F / 256}) {
    for (int i = 0; i < 2; ++i) {
      if (!gives_atens_bits(calls, {TrialNumbers::kPlain, scale, seed += kSeedsApart})) return false;
    }
  }
  return true;
}

bool are_known_bitexact(const LstmCalls& calls, BitexactKernels& kernels) {
  static Trials<std::string, bool> trials;
  std::vector<at::Tensor> tensors = calls.forward.results;
  for (std::size_t i = 0; i < LstmCalls::kInputs; ++i) tensors.push_back(calls.input(i));
  for (std::size_t i = 0; i < 3; ++i) tensors.push_back(calls.grad(i));
  const std::string key = c10::str(calls.is_reverse(), calls.has_biases(), trial_key(tensors));
  return trials.of(key, kernels, [&] { return are_bitexact(calls); });
}

// The only call that reads the forward's workspace, if it is its backward.
const OpCall* backward_of(const std::vector<OpCall>& calls, const OpCall& forward) {
  const at::Tensor workspace = forward.result(3);
  const OpCall* backward = nullptr;
  if (!workspace.defined()) return nullptr;
  for (const OpCall& call : calls) {
    bool reads = false;
    for (const c10::IValue& argument : call.arguments) {
      for_each_tensor(argument, [&](const at::Tensor& tensor) { reads = reads || tensor.is_alias_of(workspace); });
    }
    if (!reads) continue;
    if (backward != nullptr || !call.is(LstmCalls::kBackward, "")) return nullptr;
    backward = &call;
  }
  return backward;
}

}  // namespace

void find_bitexact_lstms(const std::vector<OpCall>& calls, BitexactKernels& kernels) {
  if (!threads_round_alike()) return;
  struct Layer {
    LstmCalls calls;
    bool is_own = false;  // the workspace
  };
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const OpCall* const backward = calls[i].is(LstmCalls::kForward, "") ? backward_of(calls, calls[i]) : nullptr;
    if (backward == nullptr) continue;
    const auto layer = std::make_shared<Layer>(Layer{{calls[i], *backward}});
    if (!layer->calls.fit() || !are_known_bitexact(layer->calls, kernels)) continue;
    const auto together = static_cast<std::ptrdiff_t>(i);
    constexpr const char* kName = "bit-exact LSTM";
    kernels.of_call[i] = {[layer] {
                            layer->is_own = layer->calls.run_forward();
                            if (!layer->is_own) forward_as_aten(layer->calls.forward);
                          },
                          kName, together};
    kernels.of_call[backward - calls.data()] = {[layer] {
                                                  const bool numbers = layer->is_own && layer->calls.run_backward();
                                                  if (!numbers) backward_as_aten(layer->calls, layer->is_own);
                                                },
                                                kName, together};
  }
}

}  // namespace duet
