#include "graph/record/host_free_ops.h"
#include <vector>
#include <ATen/ops/ctc_loss.h>
#include <ATen/ops/ctc_loss_compositeimplicitautograd_dispatch.h>
#include <ATen/ops/narrow_copy.h>
#include <ATen/ops/one_hot_compositeimplicitautograd_dispatch.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>
#include "base/detail/op_tap.h"

namespace duet {

namespace {

// LibTorch reads the least and the greatest index to check them; scatter_ checks each.
at::Tensor one_hot(const at::Tensor& index, int64_t classes) {
  if (!OpTap::is_active() || classes <= 0 || index.numel() == 0 || index.scalar_type() != at::kLong) {
    return at::compositeimplicitautograd::one_hot(index, classes);
  }
  std::vector<int64_t> shape = index.sizes().vec();
  shape.push_back(classes);
  return at::zeros(shape, index.options()).scatter_(-1, index.unsqueeze(-1), 1);
}

// By an op for each, so that a recording knows that they are values of the step. A copy: a view of numbers that the
// host has made is none of them.
std::vector<int64_t> values_of(const at::Tensor& lengths) {
  std::vector<int64_t> values;
  for (int64_t i = 0; i < lengths.numel(); ++i) {
    values.push_back(at::narrow_copy(lengths.dim() == 0 ? lengths.unsqueeze(0) : lengths, 0, i, 1).item().toLong());
  }
  return values;
}

// ctc_loss.Tensor. LibTorch takes the lengths by their address.
void ctc_loss(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const torch::jit::Stack given = torch::jit::pop(*stack, op.schema().arguments().size());
  const at::Tensor &log_probs = given[0].toTensor(), &targets = given[1].toTensor();
  const at::Tensor &inputs = given[2].toTensor(), &labels = given[3].toTensor();
  const auto call = [&](const auto& loss, const auto& input_lengths, const auto& target_lengths) {
    stack->emplace_back(
        loss(log_probs, targets, input_lengths, target_lengths, given[4].toInt(), given[5].toInt(), given[6].toBool()));
  };
  const auto composite = [](const auto&... arguments) { return at::compositeimplicitautograd::ctc_loss(arguments...); };
  const bool integral = c10::isIntegralType(inputs.scalar_type(), /*includeBool=*/false) &&
                        c10::isIntegralType(labels.scalar_type(), /*includeBool=*/false);
  if (!OpTap::is_active() || !integral) return call(composite, inputs, labels);
  call([](const auto&... arguments) { return at::ctc_loss(arguments...); }, values_of(inputs), values_of(labels));
}

}  // namespace

void register_host_free_ops() {
  static const bool registered = [] {
    for (const c10::DispatchKey key : {c10::DispatchKey::AutogradCPU, c10::DispatchKey::CPU}) {
      auto* library = new torch::Library(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
      library->impl("one_hot", one_hot);
      library->impl("ctc_loss.Tensor", torch::CppFunction::makeFromBoxedFunction<&ctc_loss>());
    }
    return true;
  }();
  (void)registered;
}

}  // namespace duet
