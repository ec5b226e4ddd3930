#include "core/detail/non_finite_tracer.h"
#include <algorithm>
#include <cmath>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/isnan.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/autograd/function.h>
#include "base/detail/name_pattern.h"
#include "base/detail/op_rules.h"
#include "base/detail/stack_tensors.h"
#include "core/task.h"

namespace duet {

namespace {

template <class Visit>
void for_each_number_tensor(const c10::IValue& value, Visit visit) {
  for_each_tensor(value, [&visit](const at::Tensor& tensor) {
    const bool has_numbers =
        tensor.layout() == at::kStrided && tensor.has_storage() && (tensor.is_floating_point() || tensor.is_complex());
    if (has_numbers && tensor.numel() > 0) visit(tensor);
  });
}

bool all_finite(const at::Tensor& tensor) { return at::isfinite(tensor).all().item<bool>(); }
bool any_nan(const at::Tensor& tensor) { return at::isnan(tensor).any().item<bool>(); }

}  // namespace

// An op with what it reads, as it was before the op ran.
struct NonFiniteTracer::Call {
  const c10::OperatorHandle& op;
  std::vector<at::Tensor> inputs{};
  bool reads_infinite = false, reads_nan = false;  // that are meant
};

NonFiniteTracer::NonFiniteTracer(const Task& task) {
  for (const auto& [name, tensor] : task.named_parameters()) {
    if (!tensor.has_storage()) continue;
    parameters_[tensor.storage().unsafeGetStorageImpl()] = name;
    sources_[tensor.storage().unsafeGetStorageImpl()] = "the weight '" + name + "'";
  }
  for (const auto& [name, tensor] : task.named_buffers()) {
    if (tensor.has_storage()) sources_[tensor.storage().unsafeGetStorageImpl()] = "the buffer '" + name + "'";
  }
}

void NonFiniteTracer::watch(const Batch& batch, int64_t index, const std::function<void()>& forward_backward) {
  if (found()) return forward_backward();
  micro_batch_ = index;
  samples_ = batch.size();
  last_parameter_.clear();
  for (const auto& [name, tensor] : batch.items()) {
    if (tensor.has_storage()) sources_[tensor.storage().unsafeGetStorageImpl()] = "the batch's '" + name + "'";
  }
  const OpTap tap(*this);
  forward_backward();
}

void NonFiniteTracer::on_call(const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack* stack) {
  if (found()) return op.redispatchBoxed(below, stack);
  Call call{op};
  std::vector<at::Tensor> outputs;
  const auto& arguments = op.schema().arguments();
  const std::vector<std::size_t> hidden = hidden_writes(op);
  for (std::size_t i = 0; i < arguments.size() && !found(); ++i) {
    const c10::IValue& argument = (*stack)[stack->size() - arguments.size() + i];
    if (std::find(hidden.begin(), hidden.end(), i) != hidden.end()) continue;  // statistics, which follow from the rest
    const bool written = writes(arguments[i]);
    const bool overwritten = written && overwrites(op);
    if (argument.isDouble()) {
      call.reads_infinite = call.reads_infinite || std::isinf(argument.toDouble());
      call.reads_nan = call.reads_nan || std::isnan(argument.toDouble());
    }
    for_each_number_tensor(argument, [&](const at::Tensor& tensor) {
      if (written) outputs.push_back(tensor);
      if (overwritten || found()) return;
      const at::NoGradGuard no_grad;
      const at::AutoDispatchBelowADInplaceOrView below_autograd;
      call.inputs.push_back(written ? tensor.clone() : tensor);
      const std::optional<Numbers> numbers = read(call, tensor);
      call.reads_infinite = call.reads_infinite || numbers == Numbers::kInfinite;
      call.reads_nan = call.reads_nan || numbers == Numbers::kNaN;
    });
  }
  op.redispatchBoxed(below, stack);
  if (found() || is_empty_like(op)) return;
  for (std::size_t i = stack->size() - op.schema().returns().size(); i < stack->size(); ++i) {
    for_each_number_tensor((*stack)[i], [&](const at::Tensor& tensor) { outputs.push_back(tensor); });
  }
  check_output(call, outputs);
}

std::optional<NonFiniteTracer::Numbers> NonFiniteTracer::read(const Call& call, const at::Tensor& tensor) {
  const c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  const auto parameter = parameters_.find(storage);
  if (parameter != parameters_.end()) last_parameter_ = parameter->second;
  const auto known = seen_.find(storage);
  if (known != seen_.end()) return known->second.numbers;
  Numbers numbers = Numbers::kFinite;
  if (!all_finite(tensor)) {
    if (any_nan(tensor)) {
      const auto source = sources_.find(storage);
      find(call, tensor, {}, source == sources_.end() ? "a tensor from outside the step" : source->second);
      return std::nullopt;
    }
    numbers = Numbers::kInfinite;
  }
  see(tensor, numbers);
  return numbers;
}

void NonFiniteTracer::check_output(const Call& call, const std::vector<at::Tensor>& outputs) {
  const at::NoGradGuard no_grad;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  for (const at::Tensor& output : outputs) {
    if (all_finite(output)) {
      see(output, Numbers::kFinite);
      continue;
    }
    const bool nan = any_nan(output);
    const bool is_meant = nan ? call.reads_nan : call.reads_infinite || call.reads_nan;
    if (!is_meant) return find(call, output, outputs);
    see(output, nan ? Numbers::kNaN : Numbers::kInfinite);
  }
}

// A part that is finite does not make the whole so.
void NonFiniteTracer::see(const at::Tensor& tensor, Numbers numbers) {
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  const auto [entry, is_new] = seen_.try_emplace(storage, Seen{tensor.storage().getWeakStorageImpl(), numbers});
  if (is_new) return;
  const bool whole = tensor.nbytes() >= storage->nbytes();
  entry->second.numbers = whole ? numbers : std::max(entry->second.numbers, numbers);
}

void NonFiniteTracer::find(const Call& call, const at::Tensor& bad, const std::vector<at::Tensor>& outputs,
                           const std::string& source) {
  const at::Tensor wrong = at::isfinite(bad).logical_not();
  const auto nan = at::isnan(bad).sum().item<int64_t>(), all = wrong.sum().item<int64_t>();
  found_.op = call.op.schema().name();
  found_.parameter = last_parameter_;
  found_.micro_batch = micro_batch_;
  constexpr std::size_t kMostRows = 16;
  if (bad.dim() > 0 && bad.size(0) == samples_ && parameters_.count(bad.storage().unsafeGetStorageImpl()) == 0) {
    const at::Tensor of_row = wrong.reshape({samples_, -1}).any(1).cpu();
    for (int64_t row = 0; row < samples_ && found_.rows.size() < kMostRows; ++row) {
      if (of_row[row].item<bool>()) found_.rows.push_back(row);
    }
  }
  const auto keep = [this](const char* what, const std::vector<at::Tensor>& tensors) {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      found_.tensors.emplace_back(what + std::to_string(i), tensors[i].detach().cpu().contiguous().clone());
    }
  };
  keep("input.", call.inputs);
  keep("output.", outputs);

  const std::string amount = c10::str(nan, " NaN and ", all - nan, " infinite among ", bad.numel(), " numbers");
  found_.text = source.empty() ? found_.op + " gives " + amount
                               : source + ", read by " + found_.op + ", holds " + amount + " before the step";
  found_.text += torch::autograd::get_current_node() != nullptr ? ", in the backward pass" : ", in the forward pass";
  found_.text += last_parameter_.empty() ? ", before the first weight is read"
                                         : ", in or after module '" + dotted_parent(last_parameter_) +
                                               "' (the last weight read is '" + last_parameter_ + "')";
  if (micro_batch_ > 0) found_.text += c10::str(", micro-batch ", micro_batch_);
  if (!found_.rows.empty()) found_.text += c10::str(", rows ", c10::Join(", ", found_.rows), " of the batch");
}

}  // namespace duet
