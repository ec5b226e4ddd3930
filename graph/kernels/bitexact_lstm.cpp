#include <memory>
#include <string>
#include <vector>
#include <ATen/ops/empty_like.h>
#include "base/detail/stack_tensors.h"
#include "graph/kernels/kernel_tensors.h"
#include "graph/kernels/lstm_layer.h"
#include "graph/kernels/trial_calls.h"

// Layers of LSTMs that train: oneDNN's arithmetic without its layouts, and without what it prepares for each call.

namespace duet {

namespace {

// Both calls of a layer, in a program.
class LstmKernel {
 public:
  explicit LstmKernel(LstmCalls calls) : calls_(std::move(calls)) {}

  void forward() {
    is_own_ = calls_.run_forward();
    if (!is_own_) calls_.forward.run_as_aten();
  }

  void backward() const {
    if (is_own_ && calls_.run_backward()) return;
    OpCall backward = calls_.backward;
    if (is_own_) backward.arguments[LstmCalls::kWorkspace] = onednns_workspace();
    backward.run_as_aten();
  }

 private:
  at::Tensor onednns_workspace() const {
    OpCall forward = calls_.forward;
    const at::Tensor workspace = at::empty_like(forward.result(3));
    forward.results = {at::Tensor(), at::Tensor(), at::Tensor(), workspace};
    forward.run_as_aten();
    return workspace;
  }

  LstmCalls calls_;
  bool is_own_ = false;  // the workspace
};

MakeCallKernel lstm_with(const LstmOrder& order) {
  return [order](const std::vector<OpCall>& calls) -> CallKernel {
    const LstmCalls both{calls[0], calls[1], order};
    if (!both.fit()) return {};
    return [both] { return both.run_forward() && both.run_backward(); };
  };
}

// Whose bits both calls have; none: ATen's kernels stay.
LstmOrder order_of(const std::vector<OpCall>& both, BitexactKernels& kernels) {
  static Trials<std::string, LstmOrder> trials;
  TrialRules rules;
  rules.scales = {1.0F, 1.0F / 4, 1.0F / 64, 1.0F / 256, 1.0F / 16};  // by which gates are open or near 0
  return trials.of(kind_of(both), kernels, [&] {
    if (!is_faster(lstm_with(kOneDnnAvx2), both, rules)) return LstmOrder();
    for (const LstmOrder& order : {kOneDnnAvx2, kOneDnnAvx512}) {
      if (is_bitexact(lstm_with(order), both, rules)) return order;
    }
    return LstmOrder();
  });
}

bool reads(const OpCall& call, const at::Tensor& tensor) {
  bool reads_it = false;
  for (const c10::IValue& argument : call.arguments) {
    for_each_tensor(argument, [&](const at::Tensor& other) { reads_it = reads_it || other.is_alias_of(tensor); });
  }
  return reads_it;
}

// The only call that reads the workspace of the forward; 0 if that is not its backward, or may see other tensors.
std::size_t backward_of(const std::vector<OpCall>& calls, std::size_t forward) {
  const at::Tensor workspace = calls[forward].result(3);
  std::size_t found = 0;
  for (std::size_t i = 0; workspace.defined() && i < calls.size(); ++i) {
    if (!reads(calls[i], workspace)) continue;
    if (found > 0 || i < forward || !calls[i].is(LstmCalls::kBackward, "")) return 0;
    found = i;
  }
  if (found == 0 || calls[found].segment != calls[forward].segment) return 0;
  for (std::size_t i = forward + 1; i < found; ++i) {
    for (std::size_t k = 0; k < LstmCalls::kInputs; ++k) {
      if (calls[i].writes(calls[forward].arguments[k].toTensor())) return 0;
    }
    if (calls[i].writes(calls[forward].result(0))) return 0;
  }
  return found;
}

}  // namespace

void find_bitexact_lstms(const std::vector<OpCall>& calls, BitexactKernels& kernels) {
  if (!threads_round_alike()) return;
  constexpr const char* kName = "bit-exact LSTM";
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const std::size_t backward = calls[i].is(LstmCalls::kForward, "") ? backward_of(calls, i) : 0;
    if (backward == 0) continue;
    LstmCalls both{calls[i], calls[backward]};
    if (!both.fit()) continue;
    both.order = order_of({both.forward, both.backward}, kernels);
    if (both.order.product_terms == 0) continue;
    const auto kernel = std::make_shared<LstmKernel>(both);
    const auto together = static_cast<std::ptrdiff_t>(i);
    kernels.of_call[i] = {[kernel] { kernel->forward(); }, kName, together};
    kernels.of_call[backward] = {[kernel] { kernel->backward(); }, kName, together};
  }
}

}  // namespace duet
