#include <map>
#include <mutex>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include "graph/kernels/bitexact_gelu_tanh.h"
#include "graph/kernels/bitexact_kernel.h"
#include "graph/replay/memory_plan.h"

namespace duet {

namespace {

// Once per number of threads.
bool are_bitexact(const GeluKernels& kernels) {
  static std::mutex mutex;
  static std::map<int, bool> known;
  const std::lock_guard lock(mutex);
  const auto [found, is_new] = known.try_emplace(at::get_num_threads(), false);
  if (is_new) found->second = gelu_kernels_are_bitexact(kernels);
  return found->second;
}

bool plain(const at::Tensor& tensor) { return tensor.defined() && tensor.is_contiguous() && tensor.numel() > 0; }

bool is_tanh(const c10::IValue& approximate) { return approximate.isString() && approximate.toStringRef() == "tanh"; }

// gelu.out(x, approximate, y)
bool is_forward(const OpCall& call) {
  return call.is("aten::gelu", "out") && is_tanh(call.arguments[1]) && plain(call.floats(0)) && plain(call.floats(2));
}

// gelu_backward.grad_input(grad, x, approximate, grad_x) of this very x.
bool is_backward(const OpCall& call, const at::Tensor& x) {
  return call.is("aten::gelu_backward", "grad_input") && is_tanh(call.arguments[2]) && call.floats(1).is_same(x) &&
         plain(call.floats(0)) && plain(call.floats(3));
}

// The first backward of the gelu at `forward`, while its x holds what the gelu saw; 0 if there is none.
std::size_t backward_of(const std::vector<OpCall>& calls, std::size_t forward) {
  const at::Tensor x = calls[forward].floats(0);
  for (std::size_t i = forward + 1; i < calls.size() && calls[i].segment == calls[forward].segment; ++i) {
    if (is_backward(calls[i], x)) return i;
    if (calls[i].writes(x)) return 0;
  }
  return 0;
}

}  // namespace

void find_bitexact_gelus(const std::vector<OpCall>& calls, BitexactKernels& kernels) {
  std::vector<Block> blocks;  // of memory for a tanh, from each gelu to its backward
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const std::size_t backward = is_forward(calls[i]) ? backward_of(calls, i) : 0;
    if (backward != 0) blocks.push_back({calls[i].floats(0).nbytes(), i, backward, 0});
  }
  const GeluKernels fast = fast_gelu_kernels();
  if (blocks.empty() || fast.forward == nullptr || !are_bitexact(fast)) return;

  constexpr std::size_t kAlignment = 64;
  const auto bytes = static_cast<int64_t>(plan_memory(blocks, kAlignment));
  const at::Tensor memory =
      at::empty({bytes / static_cast<int64_t>(sizeof(float))}, at::TensorOptions().dtype(at::kFloat));
  kernels.bytes += bytes;
  for (const Block& block : blocks) {
    const OpCall& forward = calls[block.first];
    const OpCall& backward = calls[block.last];
    const at::Tensor x = forward.floats(0), y = forward.floats(2);
    const at::Tensor grad = backward.floats(0), grad_x = backward.floats(3);
    const at::Tensor tanh = memory.narrow(0, static_cast<int64_t>(block.offset / sizeof(float)), x.numel());
    kernels.of_call[block.first] = {[=] { run_gelu_forward(fast, x, tanh, y); }, "bit-exact gelu, keeps its tanh"};
    kernels.of_call[block.last] = {[=] { run_gelu_backward(fast, grad, x, tanh, grad_x); },
                                   "bit-exact gelu, takes the kept tanh"};
  }
}

}  // namespace duet
