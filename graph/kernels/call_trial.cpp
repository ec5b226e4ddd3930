#include "graph/kernels/call_trial.h"
#include <algorithm>
#include <limits>
#include <map>
#include <mutex>
#include <numeric>
#include <sstream>
#include <string>
#include <utility>
#include <vector>
#include "base/detail/bits.h"
#include "graph/kernels/trial_data.h"

namespace duet {

namespace {

// How many rows of the tensors with the most dimensions are tried: so many that as many elements as in all of them are
// left for the end of a loop over vectors, where ATen may compute otherwise.
class FirstRows {
 public:
  explicit FirstRows(const std::vector<at::Tensor>& tensors) {
    constexpr int64_t kEnough = 1 << 13;  // elements
    constexpr int64_t kVectors = 64;      // elements of as many as a loop does at once
    for (const at::Tensor& tensor : tensors) dims_ = std::max(dims_, tensor.dim());
    for (const at::Tensor& tensor : tensors) {
      if (tensor.dim() != dims_ || dims_ == 0 || tensor.numel() <= kEnough) continue;
      const int64_t row = tensor.numel() / tensor.size(0);
      const int64_t period = kVectors / std::gcd(row, kVectors);
      const int64_t fewest = std::min(tensor.size(0), std::max<int64_t>(2, kEnough / row));
      rows_ = std::min(rows_, tensor.size(0) - (tensor.size(0) - fewest) / period * period);
    }
  }
  at::Tensor of(const at::Tensor& tensor) const {
    const bool cut = tensor.dim() == dims_ && dims_ > 0 && tensor.size(0) > rows_;
    return cut ? tensor.narrow(0, 0, rows_) : tensor;
  }

 private:
  int64_t dims_ = 0;
  int64_t rows_ = std::numeric_limits<int64_t>::max();
};

// A call on tensors of its own.
class CallCopy {
 public:
  static std::vector<at::Tensor> tensors_of(const OpCall& call) {
    std::vector<at::Tensor> tensors;
    for (const c10::IValue& argument : call.arguments) {
      if (argument.isTensor() && argument.toTensor().defined()) tensors.push_back(argument.toTensor());
    }
    for (const at::Tensor& result : call.results) {
      if (result.defined()) tensors.push_back(result);
    }
    return tensors;
  }

  CallCopy(const OpCall& call, TrialNumbers numbers) {
    const std::vector<at::Tensor> originals = tensors_of(call);
    const FirstRows rows(originals);
    for (const at::Tensor& original : originals) add(original, rows, numbers);
    for (const c10::IValue& argument : call.arguments) {
      const bool copied = argument.isTensor() && argument.toTensor().defined();
      arguments_.push_back(copied ? c10::IValue(copy_of(argument.toTensor())) : argument);
    }
    for (const at::Tensor& result : call.results) {
      results_.push_back(result.defined() ? copy_of(result) : at::Tensor());
    }
  }

  OpCall call(const OpCall& like) const { return {like.op, arguments_, like.segment, results_}; }

  // As ATen does it; what the op makes anew are the results then.
  void run_atens(const c10::OperatorHandle& op) {
    torch::jit::Stack stack = arguments_;
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
    for (std::size_t i = 0; i < std::min(results_.size(), stack.size()); ++i) {
      if (stack[i].isTensor() && results_[i].defined()) results_[i].copy_(stack[i].toTensor());
    }
  }

  bool same_bits_as(const CallCopy& other) const {
    for (std::size_t i = 0; i < copies_.size(); ++i) {
      if (!same_bits(copies_[i].second, other.copies_[i].second)) return false;
    }
    return true;
  }

 private:
  void add(const at::Tensor& original, const FirstRows& rows, TrialNumbers numbers) {
    if (copy_of(original).defined()) return;
    const bool is_float = original.scalar_type() == at::kFloat;
    copies_.emplace_back(original, is_float ? trial_tensor(rows.of(original), numbers, copies_.size() + 1) : original);
  }

  at::Tensor copy_of(const at::Tensor& original) const {
    for (const auto& [known, copy] : copies_) {
      if (known.is_same(original)) return copy;
    }
    return {};
  }

  std::vector<std::pair<at::Tensor, at::Tensor>> copies_;  // by original; one of no floats is its own copy
  std::vector<c10::IValue> arguments_;
  std::vector<at::Tensor> results_;
};

// What is no float and may get its memory later cannot be copied; nor can parts of one memory.
bool can_copy(const OpCall& call) {
  const std::vector<at::Tensor> tensors = CallCopy::tensors_of(call);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].scalar_type() != at::kFloat && !tensors[i].unsafeGetTensorImpl()->is_wrapped_number()) return false;
    for (std::size_t j = 0; j < i; ++j) {
      if (!tensors[i].is_same(tensors[j]) && tensors[i].is_alias_of(tensors[j])) return false;
    }
  }
  return true;
}

bool try_call(const OpCall& call, MakeKernel make) {
  const TrialGuard guard;
  for (const TrialNumbers numbers : {TrialNumbers::kPlain, TrialNumbers::kWide, TrialNumbers::kTiny,
                                     TrialNumbers::kSpecial, TrialNumbers::kNan, TrialNumbers::kAllNan}) {
    CallCopy theirs(call, numbers);
    const CallCopy ours(call, numbers);
    const OpCall like = ours.call(call);
    const std::function<void()> run = make(like);
    if (!run) return false;
    run();
    theirs.run_atens(call.op);
    if (!ours.same_bits_as(theirs)) return false;
  }
  return true;
}

std::string trial_key(const OpCall& call) {
  std::ostringstream key;
  const KernelSettings settings = kernel_settings();
  key << call.op.operator_name() << ' ' << settings.threads << settings.in_parallel << settings.flushes_denormals;
  const std::vector<at::Tensor> tensors = CallCopy::tensors_of(call);
  const auto first = [&](const at::Tensor& tensor) {
    return std::find_if(tensors.begin(), tensors.end(), [&](const at::Tensor& t) { return t.is_same(tensor); }) -
           tensors.begin();
  };
  const auto describe = [&](const at::Tensor& tensor) {
    key << " #" << first(tensor) << tensor.scalar_type() << tensor.sizes() << tensor.strides();
  };
  for (const c10::IValue& argument : call.arguments) {
    const bool is_tensor = argument.isTensor() && argument.toTensor().defined();
    is_tensor ? describe(argument.toTensor()) : void(key << ' ' << argument);
  }
  for (const at::Tensor& result : call.results) {
    if (result.defined()) describe(result);
  }
  return key.str();
}

}  // namespace

bool has_atens_bits(const OpCall& call, MakeKernel make) {
  static std::mutex mutex;
  static std::map<std::string, bool> known;
  if (!can_copy(call)) return false;
  const std::lock_guard lock(mutex);
  const auto [found, is_new] = known.try_emplace(trial_key(call), false);
  if (is_new) found->second = try_call(call, make);
  return found->second;
}

}  // namespace duet
