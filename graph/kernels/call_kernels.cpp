#include "graph/kernels/call_kernels.h"
#include <algorithm>
#include <limits>
#include <numeric>
#include <sstream>
#include <string>
#include <utility>
#include <ATen/ops/any.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isnan.h>
#include <c10/util/StringUtil.h>
#include "base/detail/bits.h"
#include "graph/kernels/kernel_tensors.h"
#include "graph/kernels/trial_data.h"

namespace duet {

namespace {

std::vector<at::Tensor> arguments_of(const OpCall& call) {
  std::vector<at::Tensor> tensors;
  for (const c10::IValue& argument : call.arguments) {
    if (argument.isTensor() && argument.toTensor().defined()) tensors.push_back(argument.toTensor());
  }
  return tensors;
}

std::vector<at::Tensor> tensors_of(const OpCall& call) {
  std::vector<at::Tensor> tensors = arguments_of(call);
  for (const at::Tensor& result : call.results) {
    if (result.defined()) tensors.push_back(result);
  }
  return tensors;
}

// How many rows of the tensors are tried: so many that as many elements as in all of them are left for the end of a
// loop over vectors, where ATen may compute otherwise.
class FirstRows {
 public:
  FirstRows(const CallKernelMaker& maker, const OpCall& call) : by_end_(maker.elementwise), dims_(maker.dims_of_rows) {
    const std::vector<at::Tensor> tensors = tensors_of(call);
    constexpr int64_t kEnough = 1 << 13;  // elements
    if (by_end_) {
      const auto writes = [&](const at::Tensor& tensor) { return call.writes(tensor); };
      const auto written = std::ranges::find_if(tensors, writes);
      take_outermost_of(written != tensors.end() ? *written : call.result(0));
    }
    for (const at::Tensor& tensor : tensors) {
      if (!has_rows(tensor) || size(tensor) == 1 || tensor.numel() <= kEnough) continue;
      const int64_t row = tensor.numel() / size(tensor);
      const int64_t period = kVectors / std::gcd(row, kVectors);
      const int64_t fewest = std::min(size(tensor), std::max<int64_t>(2, kEnough / row));
      rows_ = std::min(rows_, size(tensor) - (size(tensor) - fewest) / period * period);
    }
  }
  at::Tensor of(const at::Tensor& tensor) const {
    return has_rows(tensor) && size(tensor) > rows_ ? tensor.narrow(dim(tensor), 0, rows_) : tensor;
  }

 private:
  // The rows of elementwise arithmetic: within them the loops over vectors stay what they are. Others are broadcast.
  void take_outermost_of(const at::Tensor& result) {
    int64_t stride = 0;
    for (int64_t d = 0; d < result.dim(); ++d) {
      if (result.size(d) == 1 || result.stride(d) < stride) continue;
      stride = result.stride(d);
      dims_ = static_cast<int>(result.dim() - d);
    }
  }
  bool has_rows(const at::Tensor& tensor) const { return dims_ > 0 && tensor.dim() >= dims_; }
  int64_t dim(const at::Tensor& tensor) const { return by_end_ ? tensor.dim() - dims_ : 0; }
  int64_t size(const at::Tensor& tensor) const { return tensor.size(dim(tensor)); }

  bool by_end_;  // the rows' dimension is that of dims_ from the end; else the first of tensors with so many
  int dims_;
  int64_t rows_ = std::numeric_limits<int64_t>::max();
};

at::Tensor trial_indices(const at::Tensor& like, int64_t count) {
  const at::Tensor indices = at::empty(like.sizes(), like.options());
  auto* values = static_cast<int64_t*>(indices.mutable_data_ptr());
  for (int64_t i = 0; i < indices.numel(); ++i) values[i] = i * 7 % count;
  return indices;
}

bool is_wrapped_number(const at::Tensor& tensor) { return tensor.unsafeGetTensorImpl()->is_wrapped_number(); }

// Not: other types than floats and classes, and results in the memory of others.
bool can_copy(const CallKernelMaker& maker, const OpCall& call) {
  const std::vector<at::Tensor> tensors = tensors_of(call);
  return std::ranges::all_of(tensors, [&](const at::Tensor& tensor) {
    const at::ScalarType type = tensor.scalar_type();
    const bool known = type == at::kFloat || (type == at::kLong && maker.classes >= 0) || is_wrapped_number(tensor);
    return known && std::ranges::none_of(call.results, [&](const at::Tensor& result) {
             return result.defined() && !result.is_same(tensor) && result.is_alias_of(tensor);
           });
  });
}

struct Filling {
  TrialNumbers numbers;
  uint64_t seed = 0;
  uint64_t denormal = 0;  // a bit for each tensor that has denormal numbers instead

  TrialNumbers of(std::size_t tensor) const {
    return (denormal >> tensor & 1) != 0 ? TrialNumbers::kDenormal : numbers;
  }
};

// The call in memory of its own, filled: twice the same for the same filling.
class TrialCall {
 public:
  TrialCall(const CallKernelMaker& maker, const OpCall& like, const Filling& filling) : call_{like.op, {}} {
    const int64_t classes = maker.classes < 0 ? 1 : like.arguments[maker.classes].toTensor().size(-1);
    const std::vector<at::Tensor> originals = tensors_of(like);
    const FirstRows rows(maker, like);
    for (const at::Tensor& original : originals) {
      if (copy_of(original).defined()) continue;
      const bool is_float = original.scalar_type() == at::kFloat;
      const at::Tensor part = rows.of(original);
      copies_.emplace_back(original,
                           is_float ? trial_tensor(part, filling.of(copies_.size()), filling.seed + copies_.size() + 1)
                           : is_wrapped_number(original) ? original
                                                         : trial_indices(original, classes));
    }
    for (const c10::IValue& argument : like.arguments) {
      const bool copied = argument.isTensor() && argument.toTensor().defined();
      call_.arguments.push_back(copied ? c10::IValue(copy_of(argument.toTensor())) : argument);
    }
    for (const at::Tensor& result : like.results) {
      call_.results.push_back(result.defined() ? copy_of(result) : at::Tensor());
    }
  }

  const OpCall& call() const { return call_; }

  bool same_bits_as(const TrialCall& other) const {
    for (std::size_t i = 0; i < copies_.size(); ++i) {
      if (!same_bits(copies_[i].second, other.copies_[i].second)) return false;
    }
    return true;
  }
  bool has_nan() const {
    return std::ranges::any_of(
        call_.results, [](const at::Tensor& result) { return result.defined() && result.isnan().any().item<bool>(); });
  }

 private:
  at::Tensor copy_of(const at::Tensor& original) const {
    for (const auto& [known, copy] : copies_) {
      if (known.is_same(original)) return copy;
    }
    return {};
  }

  OpCall call_;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies_;  // by original
};

bool gives_atens_bits(const CallKernelMaker& maker, const OpCall& like, const Filling& filling) {
  const TrialCall ours(maker, like, filling), theirs(maker, like, filling);
  const CallKernel kernel = maker.make(ours.call());
  if (!kernel) return false;
  const bool computed = kernel();
  theirs.call().run_as_aten();
  // Zeros that a kernel adds make NaN of infinities, and 0 of a -0.
  const bool may_refuse = filling.numbers > TrialNumbers::kWide || filling.denormal != 0 || theirs.has_nan();
  return computed ? ours.same_bits_as(theirs) : may_refuse;
}

// Another rounding shows in few elements: small tensors are tried many times.
int64_t trials_of(const std::vector<at::Tensor>& tensors) {
  constexpr int64_t kFewest = 2, kMost = 16, kElements = int64_t{1} << 14;
  int64_t largest = 1;
  for (const at::Tensor& tensor : tensors) largest = std::max(largest, tensor.numel());
  return std::clamp(kElements / largest, kFewest, kMost);
}

// On plain numbers, in memory of its own.
bool is_faster(const CallKernelMaker& maker, const OpCall& like) {
  const TrialGuard guard;
  const TrialCall trial(maker, like, {TrialNumbers::kPlain});
  const CallKernel kernel = maker.make(trial.call());
  return kernel && takes_less_time(kernel, [&] { trial.call().run_as_aten(); });
}

}  // namespace

bool is_bitexact(const CallKernelMaker& maker, const OpCall& like) {
  const TrialGuard guard;
  constexpr uint64_t kSeedsApart = 100;
  const std::vector<at::Tensor> tensors = tensors_of(like);
  if (!can_copy(maker, like)) return false;
  for (const TrialNumbers numbers : kTrialNumbersWithNan) {
    if (!gives_atens_bits(maker, like, {numbers})) return false;
  }
  // Where a power of two multiplies shows in denormal numbers alone: in a product of one of them, and in sums of some.
  std::vector<uint64_t> denormal = {0x5555555555555555, 0xAAAAAAAAAAAAAAAA, ~uint64_t{0}};
  for (std::size_t tensor = arguments_of(like).size(); tensor-- > 0;) denormal.push_back(uint64_t{1} << tensor);
  for (const uint64_t these : denormal) {
    if (!gives_atens_bits(maker, like, {TrialNumbers::kPlain, 0, these})) return false;
  }
  for (int64_t i = trials_of(tensors); i > 0; --i) {
    if (!gives_atens_bits(maker, like, {TrialNumbers::kPlain, kSeedsApart * static_cast<uint64_t>(i)})) return false;
  }
  return true;
}

namespace {

// All that the order of ATen's arithmetic may depend on.
std::string kind_of(const OpCall& call) {
  std::ostringstream out;
  std::vector<at::Tensor> tensors;
  out << call.op.operator_name() << ";";
  for (const c10::IValue& argument : call.arguments) {
    argument.isTensor() ? tensors.push_back(argument.toTensor()) : void(out << argument << ";");
  }
  tensors.insert(tensors.end(), call.results.begin(), call.results.end());
  return out.str() + trial_key(tensors);
}

bool is_known_bitexact(const CallKernelMaker& maker, const OpCall& call, BitexactKernels& kernels) {
  static Trials<std::string, bool> trials;
  const auto* const make = reinterpret_cast<const void*>(maker.make);
  return trials.of(kind_of(call) + c10::str(make), kernels, [&] {
    const OpCall tried = maker.tried != nullptr ? maker.tried(call) : call;
    return (!maker.must_be_faster || is_faster(maker, call)) && is_bitexact(maker, tried);
  });
}

}  // namespace

void find_call_kernels(const std::vector<CallKernelMaker>& makers, const std::vector<OpCall>& calls,
                       BitexactKernels& kernels) {
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const OpCall& call = calls[i];
    for (const CallKernelMaker& maker : makers) {
      if (kernels.of_call[i].run || !call.is(maker.op, maker.overload)) continue;
      CallKernel kernel = maker.make(call);
      if (!kernel || !is_known_bitexact(maker, call, kernels)) continue;
      kernels.of_call[i] = {[kernel = std::move(kernel), call] {
                              if (!kernel()) call.run_as_aten();
                            },
                            maker.name};
      kernels.of_call[i].elementwise = maker.elementwise;
      if (maker.by_rows != nullptr) kernels.of_call[i].by_rows = maker.by_rows(call);
    }
  }
}

}  // namespace duet
