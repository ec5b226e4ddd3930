#include "graph/kernels/call_kernels.h"
#include <algorithm>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <ATen/Parallel.h>
#include <ATen/ops/any.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isnan.h>
#include <c10/util/StringUtil.h>
#include "base/detail/bits.h"
#include "graph/kernels/trial_data.h"

namespace duet {

void AtenCall::run() const {
  std::vector<c10::IValue> stack = arguments;
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (results[i].defined() && !results[i].is_same(stack[i].toTensor())) results[i].copy_(stack[i].toTensor());
  }
}

namespace {

at::Tensor trial_indices(const at::Tensor& like, int64_t count) {
  const at::Tensor indices = at::empty(like.sizes(), like.options());
  auto* values = static_cast<int64_t*>(indices.mutable_data_ptr());
  for (int64_t i = 0; i < indices.numel(); ++i) values[i] = i * 7 % count;
  return indices;
}

struct Filling {
  TrialNumbers numbers;
  uint64_t seed;
};

// The call in memory of its own, filled: twice the same for the same filling.
class TrialCall {
 public:
  TrialCall(const CallKernelMaker& maker, const OpCall& like, const Filling& filling)
      : op_(like.op), filling_(filling) {
    if (maker.classes >= 0) classes_ = like.arguments[maker.classes].toTensor().size(-1);
    for (const c10::IValue& argument : like.arguments) {
      arguments_.push_back(argument.isTensor() ? copy_of(argument.toTensor()) : argument);
    }
    for (const at::Tensor& result : like.results) results_.push_back(copy_of(result));
  }

  OpCall call() const { return {op_, arguments_, 0, results_}; }
  AtenCall atens() const { return {op_, arguments_, results_}; }
  const std::vector<at::Tensor>& results() const { return results_; }

 private:
  at::Tensor copy_of(const at::Tensor& like) {
    if (!like.defined()) return like;
    const auto [found, is_new] = copies_.try_emplace(like.unsafeGetTensorImpl());
    if (!is_new) return found->second;
    const bool floats = like.scalar_type() == at::kFloat;
    return found->second = floats ? trial_tensor(like, filling_.numbers, filling_.seed + copies_.size())
                                  : trial_indices(like, classes_);
  }

  c10::OperatorHandle op_;
  Filling filling_;
  int64_t classes_ = 1;
  std::map<at::TensorImpl*, at::Tensor> copies_;
  std::vector<c10::IValue> arguments_;
  std::vector<at::Tensor> results_;
};

bool same_results(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i].defined() && !same_bits(a[i], b[i])) return false;
  }
  return true;
}

bool has_nan(const std::vector<at::Tensor>& results) {
  return std::ranges::any_of(
      results, [](const at::Tensor& result) { return result.defined() && result.isnan().any().item<bool>(); });
}

}  // namespace

namespace {

bool gives_atens_bits(const CallKernelMaker& maker, const OpCall& like, const Filling& filling) {
  const TrialCall ours(maker, like, filling), theirs(maker, like, filling);
  const CallKernel kernel = maker.make(ours.call());
  if (!kernel) return false;
  const bool computed = kernel();
  theirs.atens().run();
  return computed ? same_results(ours.results(), theirs.results()) : has_nan(theirs.results());
}

// Another rounding shows in few elements: small tensors are tried many times.
int64_t trials_of(const OpCall& call) {
  constexpr int64_t kFewest = 2, kMost = 16, kElements = int64_t{1} << 14;
  int64_t largest = 1;
  for (const c10::IValue& argument : call.arguments) {
    const bool counts = argument.isTensor() && argument.toTensor().defined();
    largest = counts ? std::max(largest, argument.toTensor().numel()) : largest;
  }
  return std::clamp(kElements / largest, kFewest, kMost);
}

}  // namespace

bool is_bitexact(const CallKernelMaker& maker, const OpCall& like) {
  const TrialGuard guard;
  constexpr uint64_t kSeedsApart = 100;
  for (const TrialNumbers numbers : kAllTrialNumbers) {
    if (!gives_atens_bits(maker, like, {numbers, 0})) return false;
  }
  for (int64_t i = trials_of(like); i > 0; --i) {
    if (!gives_atens_bits(maker, like, {TrialNumbers::kPlain, kSeedsApart * static_cast<uint64_t>(i)})) return false;
  }
  return true;
}

namespace {

void describe(std::ostream& out, const at::Tensor& tensor) {
  if (!tensor.defined()) return void(out << "none;");
  out << tensor.scalar_type() << tensor.sizes() << tensor.strides() << floats_past_alignment(tensor) << ";";
}

// All that the order of ATen's arithmetic may depend on.
std::string kind_of(const OpCall& call) {
  std::ostringstream out;
  out << call.op.operator_name() << at::get_num_threads() << at::in_parallel_region() << ";";
  for (const c10::IValue& argument : call.arguments) {
    if (argument.isTensor()) {
      describe(out, argument.toTensor());
    } else {
      out << argument << ";";
    }
  }
  for (const at::Tensor& result : call.results) describe(out, result);
  return std::move(out).str();
}

bool is_known_bitexact(const CallKernelMaker& maker, const OpCall& call) {
  static std::mutex mutex;
  static std::map<std::string, bool> known;
  const std::lock_guard lock(mutex);
  const auto* const make = reinterpret_cast<const void*>(maker.make);
  const auto [found, is_new] = known.try_emplace(kind_of(call) + c10::str(make), false);
  if (is_new) found->second = is_bitexact(maker, call);
  return found->second;
}

}  // namespace

void find_call_kernels(const std::vector<CallKernelMaker>& makers, const std::vector<OpCall>& calls,
                       BitexactKernels& kernels) {
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const OpCall& call = calls[i];
    for (const CallKernelMaker& maker : makers) {
      if (kernels.of_call[i].run || !call.is(maker.op, maker.overload)) continue;
      CallKernel kernel = maker.make(call);
      if (!kernel || !is_known_bitexact(maker, call)) continue;
      const AtenCall atens{call.op, call.arguments, call.results};
      kernels.of_call[i] = {[kernel = std::move(kernel), atens] {
                              if (!kernel()) atens.run();
                            },
                            maker.name};
    }
  }
}

}  // namespace duet
