#include <duet/graph/exact_product.h>

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <duet/core/tensor_compare.h>
#include <duet/graph/kernel_settings.h>
#include <duet/graph/kernel_threads.h>
#include <duet/graph/trial_data.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <vector>

namespace duet {

namespace {

bool is_row(const at::Tensor& bias, int64_t columns) {
  if (!bias.defined()) return true;
  const bool one = bias.dim() == 1 || (bias.dim() == 2 && (bias.size(0) == 1 || bias.stride(0) == 0));
  return one && bias.size(-1) == columns && (columns == 1 || bias.stride(-1) == 1);
}

void compute_as_aten(const ProductTensors& t) {
  at::Tensor out = t.out;
  if (t.before.defined()) {
    at::addmm_out(out, t.before, t.a, t.b);
  } else {
    at::mm_out(out, t.a, t.b);
  }
  if (t.after.defined()) out.add_(t.after);
}

ProductTensors trial_tensors(const ProductTensors& like, TrialNumbers numbers) {
  const auto trial = [&](const at::Tensor& tensor, uint64_t seed) {
    return tensor.defined() ? trial_tensor(tensor, numbers, seed) : tensor;
  };
  return {trial(like.a, 1), trial(like.b, 2), trial(like.out, 3), trial(like.before, 4), trial(like.after, 5)};
}

bool gives_the_bits(const ProductTensors& like, ProductKernel kernel, int64_t k_block, TrialNumbers numbers) {
  const ProductTensors theirs = trial_tensors(like, numbers);
  ProductTensors ours = theirs;
  ours.out = trial_tensor(like.out, numbers, 3);
  compute_as_aten(theirs);
  ProductRunner(kernel, ours, k_block).run(ours);
  return same_bits(theirs.out, ours.out);
}

// How BLAS libraries cut k: not at all, into blocks of a fixed size, or into two about equal ones.
std::vector<int64_t> possible_k_blocks(int64_t k) {
  constexpr int64_t kUnroll = 4;
  std::vector<int64_t> blocks = {k};
  for (const int64_t block : {(k / 2) / kUnroll * kUnroll, int64_t{192}, int64_t{128}, int64_t{256}, int64_t{320},
                              int64_t{336}, int64_t{384}, int64_t{512}}) {
    if (block > 0 && block < k) blocks.push_back(block);
  }
  return blocks;
}

// The shortest of some runs, in seconds: many of a short one, three of a long one.
template <class Work>
double time_of(Work work) {
  constexpr double kEnough = 5e-4;
  constexpr int kFewest = 3;
  constexpr int kMost = 50;
  double best = 1e9;
  double total = 0;
  for (int run = 0; run < kMost && (run < kFewest || total < kEnough); ++run) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    best = std::min(best, seconds);
    total += seconds;
  }
  return best;
}

bool is_faster(const ProductTensors& like, ProductKernel kernel, int64_t k_block) {
  const ProductTensors trial = trial_tensors(like, TrialNumbers::kPlain);
  const ProductRunner runner(kernel, trial, k_block);
  return time_of([&] { runner.run(trial); }) < time_of([&] { compute_as_aten(trial); });
}

int64_t try_out(const ProductTensors& tensors, ProductKernel kernel) {
  for (const int64_t k_block : possible_k_blocks(tensors.a.size(1))) {
    if (!gives_the_bits(tensors, kernel, k_block, TrialNumbers::kPlain)) continue;
    for (const TrialNumbers numbers : kAllTrialNumbers) {
      if (!gives_the_bits(tensors, kernel, k_block, numbers)) return 0;
    }
    return is_faster(tensors, kernel, k_block) ? k_block : 0;
  }
  return 0;
}

// What the answer depends on.
std::vector<int64_t> question(const ProductTensors& tensors) {
  const KernelSettings settings = kernel_settings();
  std::vector<int64_t> key = {settings.threads, settings.precision};
  for (const at::Tensor& tensor : {tensors.a, tensors.b, tensors.out, tensors.before, tensors.after}) {
    if (!tensor.defined()) {
      key.push_back(-1);
      continue;
    }
    key.insert(key.end(), tensor.sizes().begin(), tensor.sizes().end());
    key.insert(key.end(), tensor.strides().begin(), tensor.strides().end());
    key.push_back(floats_past_alignment(tensor));
  }
  return key;
}

}  // namespace

bool can_address(const ProductTensors& t) {
  if (t.a.dim() != 2 || t.b.dim() != 2 || t.out.dim() != 2 || t.a.numel() == 0 || t.b.numel() == 0) return false;
  const bool product = t.a.size(1) == t.b.size(0) && t.out.size(0) == t.a.size(0) && t.out.size(1) == t.b.size(1);
  const bool strides =
      t.out.stride(1) == 1 && t.out.stride(0) >= t.out.size(1) && (t.b.stride(0) == 1 || t.b.stride(1) == 1);
  const bool apart = !t.out.is_alias_of(t.a) && !t.out.is_alias_of(t.b) &&
                     !(t.before.defined() && t.out.is_alias_of(t.before)) &&
                     !(t.after.defined() && t.out.is_alias_of(t.after));
  return product && strides && apart && is_row(t.before, t.out.size(1)) && is_row(t.after, t.out.size(1));
}

int64_t exact_k_block(const ProductTensors& tensors, ProductKernel kernel) {
  static std::mutex mutex;
  static std::map<std::pair<std::vector<int64_t>, ProductKernel>, int64_t> answers;
  const std::lock_guard lock(mutex);
  const auto [answer, is_new] = answers.try_emplace({question(tensors), kernel}, 0);
  if (is_new) {
    const at::NoGradGuard no_grad;
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    answer->second = try_out(tensors, kernel);
  }
  return answer->second;
}

ProductRunner::ProductRunner(ProductKernel kernel, const ProductTensors& t, int64_t k_block) : kernel_(kernel) {
  product_.m = t.a.size(0), product_.n = t.b.size(1), product_.k = t.a.size(1);
  product_.a_row = t.a.stride(0), product_.a_column = t.a.stride(1);
  product_.b_row = t.b.stride(0), product_.b_column = t.b.stride(1);
  product_.c_row = t.out.stride(0);
  product_.k_block = k_block;
  constexpr int64_t kWorthAThread = 1 << 18;  // multiplications: some microseconds
  const int64_t work = product_.m * product_.n * product_.k / kWorthAThread;
  const int64_t threads = std::clamp<int64_t>(work, 1, at::get_num_threads());
  // Parts of whole panels if there are enough; rows otherwise, and then each part turns b over for itself.
  const int64_t panels = (product_.n + kPanelColumns - 1) / kPanelColumns;
  (panels % threads == 0 || panels >= 4 * threads ? column_parts_ : row_parts_) = threads;
  if (product_.b_column == 1) return;
  scratch_floats_ = k_block * kPanelColumns;
  scratch_ = at::empty({threads * scratch_floats_}, at::TensorOptions().dtype(at::kFloat));
}

ProductPart ProductRunner::part(int64_t index) const {
  const int64_t row = index / column_parts_;
  const int64_t column = index % column_parts_;
  const int64_t panels = (product_.n + kPanelColumns - 1) / kPanelColumns;
  return {product_.m * row / row_parts_, product_.m * (row + 1) / row_parts_,
          panels * column / column_parts_ * kPanelColumns,
          std::min(product_.n, panels * (column + 1) / column_parts_ * kPanelColumns)};
}

void ProductRunner::run(const ProductTensors& tensors) const {
  const auto floats = [](const at::Tensor& tensor) {
    return tensor.defined() ? static_cast<const float*>(tensor.const_data_ptr()) : nullptr;
  };
  Product product = product_;
  product.a = floats(tensors.a), product.b = floats(tensors.b);
  product.before = floats(tensors.before), product.after = floats(tensors.after);
  product.c = static_cast<float*>(tensors.out.mutable_data_ptr());
  float* scratch = scratch_.defined() ? static_cast<float*>(scratch_.mutable_data_ptr()) : nullptr;
  run_tasks(row_parts_ * column_parts_, [&](int64_t i) { kernel_(product, part(i), scratch + i * scratch_floats_); });
}

}  // namespace duet
