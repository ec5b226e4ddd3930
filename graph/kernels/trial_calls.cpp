#include "graph/kernels/trial_calls.h"
#include <algorithm>
#include <limits>
#include <numeric>
#include <sstream>
#include <utility>
#include <ATen/ops/any.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/isnan.h>
#include "base/detail/bits.h"
#include "base/detail/op_rules.h"
#include "graph/kernels/kernel_tensors.h"
#include "graph/kernels/trial_data.h"

namespace duet {

namespace {

using Tensors = std::vector<at::Tensor>;

// Each once, in the order of the calls: arguments and then, if wanted, results.
Tensors tensors_of(const std::vector<OpCall>& calls, bool with_results = true) {
  Tensors tensors;
  const auto see = [&](const at::Tensor& tensor) {
    const auto is_it = [&](const at::Tensor& other) { return other.is_same(tensor); };
    if (tensor.defined() && std::ranges::none_of(tensors, is_it)) tensors.push_back(tensor);
  };
  for (const OpCall& call : calls) {
    for (const c10::IValue& argument : call.arguments) {
      if (argument.isTensor()) see(argument.toTensor());
    }
    for (const at::Tensor& result : call.results) {
      if (with_results) see(result);
    }
  }
  return tensors;
}

// How many rows of the tensors are tried: so many that as many elements as in all of them are left for the end of a
// loop over vectors, where ATen may compute otherwise.
class FirstRows {
 public:
  FirstRows(const std::vector<OpCall>& calls, const TrialRules& rules)
      : by_end_(rules.elementwise), dims_(rules.dims_of_rows) {
    const Tensors tensors = tensors_of(calls);
    constexpr int64_t kEnough = 1 << 13;  // elements
    if (by_end_) {
      const OpCall& call = calls.front();
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

bool is_result(const at::Tensor& tensor, const std::vector<OpCall>& calls) {
  return std::ranges::any_of(calls, [&](const OpCall& call) {
    return std::ranges::any_of(call.results, [&](const at::Tensor& result) { return result.is_same(tensor); });
  });
}

// Which a call hands on to a later one, in a way of its own.
bool is_workspace(const at::Tensor& tensor, const std::vector<OpCall>& calls) {
  return std::ranges::any_of(calls, [&](const OpCall& call) {
    const auto found = std::ranges::find_if(call.results, [&](const auto& result) { return result.is_same(tensor); });
    return found != call.results.end() &&
           duet::is_workspace(call.op, static_cast<std::size_t>(found - call.results.begin()));
  });
}

// Not: other types than floats and classes, and results in the memory of others.
bool can_copy(const std::vector<OpCall>& calls, const TrialRules& rules) {
  const Tensors tensors = tensors_of(calls);
  return std::ranges::all_of(tensors, [&](const at::Tensor& tensor) {
    const at::ScalarType type = tensor.scalar_type();
    const bool known = type == at::kFloat || (type == at::kLong && rules.classes >= 0) || is_workspace(tensor, calls) ||
                       is_wrapped_number(tensor);
    return known && std::ranges::none_of(tensors, [&](const at::Tensor& other) {
             return !other.is_same(tensor) && is_result(other, calls) && other.is_alias_of(tensor);
           });
  });
}

struct Filling {
  TrialNumbers numbers;
  uint64_t seed = 0;
  uint64_t denormal = 0;  // a bit for each tensor that has denormal numbers instead
  float scale = 1.0F;

  TrialNumbers of(std::size_t tensor) const {
    return (denormal >> tensor & 1) != 0 ? TrialNumbers::kDenormal : numbers;
  }
};

// The calls in memory of their own, filled: twice the same for the same filling.
class TrialCalls {
 public:
  TrialCalls(const std::vector<OpCall>& like, const TrialRules& rules, const Filling& filling) : calls_(like) {
    const int64_t classes = rules.classes < 0 ? 1 : like.front().arguments[rules.classes].toTensor().size(-1);
    const FirstRows rows(like, rules);
    for (const at::Tensor& original : tensors_of(like)) {
      copies_.emplace_back(original, copy(original, rows.of(original), filling, classes));
    }
    for (OpCall& call : calls_) {
      for (c10::IValue& argument : call.arguments) {
        if (argument.isTensor() && argument.toTensor().defined()) argument = copy_of(argument.toTensor());
      }
      for (at::Tensor& result : call.results) {
        if (result.defined()) result = copy_of(result);
      }
    }
  }

  const std::vector<OpCall>& calls() const { return calls_; }
  void run_as_aten() const {
    for (const OpCall& call : calls_) call.run_as_aten();
  }
  // As a replay has it, which does not copy what an op makes.
  void let_ops_make_results() {
    for (OpCall& call : calls_) call.results.clear();
  }

  bool same_bits_as(const TrialCalls& other) const {
    for (std::size_t i = 0; i < copies_.size(); ++i) {
      const at::Tensor& copy = copies_[i].second;
      if (copy.scalar_type() != at::kByte && !same_bits(copy, other.copies_[i].second)) return false;
    }
    return true;
  }
  bool has_nan() const {
    return std::ranges::any_of(copies_, [&](const auto& item) {
      const at::Tensor& copy = item.second;
      return copy.is_floating_point() && is_result(copy, calls_) && copy.isnan().any().template item<bool>();
    });
  }

 private:
  at::Tensor copy(const at::Tensor& original, const at::Tensor& part, const Filling& filling, int64_t classes) const {
    if (original.scalar_type() == at::kByte) return at::empty_like(original);
    if (original.scalar_type() == at::kFloat) {
      return trial_tensor(part, filling.of(copies_.size()), filling.seed + copies_.size() + 1, filling.scale);
    }
    return is_wrapped_number(original) ? original : trial_indices(original, classes);
  }
  at::Tensor copy_of(const at::Tensor& original) const {
    const auto is_it = [&](const auto& item) { return item.first.is_same(original); };
    return std::ranges::find_if(copies_, is_it)->second;
  }

  std::vector<OpCall> calls_;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies_;  // by original
};

// What a trial needs beside numbers.
struct Trial {
  const MakeCallKernel& make;
  const std::vector<OpCall>& calls;
  const TrialRules& rules;

  bool gives_atens_bits(const Filling& filling) const {
    const TrialCalls ours(calls, rules, filling), theirs(calls, rules, filling);
    const CallKernel kernel = make(ours.calls());
    if (!kernel) return false;
    const bool computed = kernel();
    theirs.run_as_aten();
    // Zeros that a kernel adds make NaN of infinities, and 0 of a -0.
    const bool may_refuse = filling.numbers > TrialNumbers::kWide || filling.denormal != 0 || theirs.has_nan();
    return computed ? ours.same_bits_as(theirs) : may_refuse;
  }

  // Another rounding shows in few elements: small tensors are tried many times.
  int64_t rounds() const {
    constexpr int64_t kFewest = 2, kMost = 16, kElements = int64_t{1} << 14;
    int64_t largest = 1;
    for (const at::Tensor& tensor : tensors_of(calls)) largest = std::max(largest, tensor.numel());
    return std::clamp(kElements / largest, kFewest, kMost);
  }
};

}  // namespace

bool is_faster(const MakeCallKernel& make, const std::vector<OpCall>& calls, const TrialRules& rules) {
  const TrialGuard guard;
  const Filling usual{.numbers = TrialNumbers::kPlain, .scale = rules.scales.back()};
  const TrialCalls ours(calls, rules, usual);
  TrialCalls theirs = calls.size() == 1 ? ours : TrialCalls(calls, rules, usual);  // with a workspace of their own
  const CallKernel kernel = make(ours.calls());
  if (!kernel) return false;
  theirs.run_as_aten();
  theirs.let_ops_make_results();
  constexpr double kMoreThanNoise = 0.98;
  return time_ratio(kernel, [&] { theirs.run_as_aten(); }) < kMoreThanNoise;
}

bool is_bitexact(const MakeCallKernel& make, const std::vector<OpCall>& calls, const TrialRules& rules) {
  const TrialGuard guard;
  constexpr uint64_t kSeedsApart = 100;
  if (!can_copy(calls, rules)) return false;
  const Trial trial{make, calls, rules};
  for (const TrialNumbers numbers : kTrialNumbersWithNan) {
    if (!trial.gives_atens_bits({numbers})) return false;
  }
  // Where a power of two multiplies shows in denormal numbers alone: in a product of one of them, and in sums of some.
  std::vector<uint64_t> denormal = {0x5555555555555555, 0xAAAAAAAAAAAAAAAA, ~uint64_t{0}};
  for (std::size_t tensor = tensors_of(calls, false).size(); tensor-- > 0;) denormal.push_back(uint64_t{1} << tensor);
  for (const uint64_t these : denormal) {
    if (!trial.gives_atens_bits({TrialNumbers::kPlain, 0, these})) return false;
  }
  for (int64_t i = trial.rounds(); i > 0; --i) {
    for (const float scale : rules.scales) {
      if (!trial.gives_atens_bits({TrialNumbers::kPlain, kSeedsApart * static_cast<uint64_t>(i), 0, scale}))
        return false;
    }
  }
  return true;
}

std::string kind_of(const std::vector<OpCall>& calls) {
  std::ostringstream out;
  Tensors tensors;
  for (const OpCall& call : calls) {
    out << call.op.operator_name() << ";";
    for (const c10::IValue& argument : call.arguments) {
      argument.isTensor() ? tensors.push_back(argument.toTensor()) : void(out << argument << ";");
    }
    tensors.insert(tensors.end(), call.results.begin(), call.results.end());
  }
  return out.str() + trial_key(tensors);
}

}  // namespace duet
