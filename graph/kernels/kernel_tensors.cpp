#include "graph/kernels/kernel_tensors.h"
#include <algorithm>
#include <atomic>
#include <ATen/Parallel.h>
#include "graph/kernels/bitexact_kernel.h"
#include "graph/record/thread_settings.h"

namespace duet {

bool is_contiguous_float(const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_cpu() && tensor.layout() == at::kStrided && tensor.scalar_type() == at::kFloat &&
         !tensor.is_neg() && tensor.is_contiguous();
}

bool is_contiguous_float(const at::Tensor& tensor, int64_t elements) {
  return is_contiguous_float(tensor) && tensor.numel() == elements;
}

bool are_images(const at::Tensor& tensor) {
  return is_contiguous_float(tensor) && tensor.numel() > 0 &&
         tensor.suggest_memory_format() == at::MemoryFormat::Contiguous;
}

bool share_no_memory(const std::vector<at::Tensor>& results, const std::vector<at::Tensor>& inputs) {
  const auto shares = [](const at::Tensor& a, const at::Tensor& b) {
    return a.defined() && b.defined() && a.is_alias_of(b);
  };
  for (std::size_t i = 0; i < results.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (shares(results[i], results[j])) return false;
    }
    for (const at::Tensor& input : inputs) {
      if (shares(results[i], input)) return false;
    }
  }
  return true;
}

void for_each_part(int64_t count, int64_t elements, const std::function<void(int64_t begin, int64_t end)>& part) {
  constexpr int64_t kWorthAThread = 1 << 14;
  const int64_t parts =
      std::clamp<int64_t>(elements / kWorthAThread, 1, std::min<int64_t>(count, at::get_num_threads()));
  run_tasks(parts, [&](int64_t i) { part(count * i / parts, count * (i + 1) / parts); });
}

bool threads_round_alike() {
  const KernelSettings settings = kernel_settings();
  if (settings.threads == 1) return true;
  std::atomic<bool> flushes = settings.flushes_denormals;
  run_tasks(settings.threads, [&](int64_t) { flushes = flushes || flushes_denormals(); });
  return !flushes;
}

}  // namespace duet
