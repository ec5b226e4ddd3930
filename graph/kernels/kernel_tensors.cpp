#include "graph/kernels/kernel_tensors.h"
#include <algorithm>
#include <atomic>
#include <cfenv>
#include <memory>
#include <sstream>
#include <ATen/Parallel.h>
#include "base/detail/stopwatch.h"
#include "graph/kernels/trial_data.h"
#include "graph/record/thread_settings.h"

namespace duet {

bool is_float(const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_cpu() && tensor.layout() == at::kStrided && tensor.scalar_type() == at::kFloat &&
         !tensor.is_neg();
}

bool is_contiguous_float(const at::Tensor& tensor) { return is_float(tensor) && tensor.is_contiguous(); }

bool is_contiguous_float(const at::Tensor& tensor, int64_t elements) {
  return is_contiguous_float(tensor) && tensor.numel() == elements;
}

bool are_images(const at::Tensor& tensor) {
  return is_contiguous_float(tensor) && tensor.numel() > 0 &&
         tensor.suggest_memory_format() == at::MemoryFormat::Contiguous;
}

// In larger ones what goes by before the arithmetic no longer counts.
RowShape rows_of(const at::Tensor& x, int64_t width) {
  constexpr int64_t kMostElements = int64_t{1} << 18;
  const bool fits = x.defined() && width > 0 && x.is_contiguous() && x.numel() > 0 && x.numel() <= kMostElements &&
                    x.numel() % width == 0;
  return fits ? RowShape{x.numel() / width, width} : RowShape();
}

std::string trial_key(const std::vector<at::Tensor>& tensors) {
  const KernelSettings now = kernel_settings();
  std::ostringstream out;
  out << now.threads << ";" << now.blas_threads << ";" << now.in_parallel << ";" << now.precision << ";"
      << now.flushes_denormals << ";" << now.rounding;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor& tensor = tensors[i];
    out << ";" << tensor.defined();
    if (!tensor.defined()) continue;
    const auto same = std::ranges::find_if(tensors, [&](const at::Tensor& other) { return other.is_same(tensor); });
    out << same - tensors.begin() << tensor.scalar_type() << tensor.sizes() << tensor.strides()
        << floats_past_alignment(tensor);
  }
  return std::move(out).str();
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

int64_t length_of_ranges(int64_t count, int64_t grain) {
  const int64_t threads = at::in_parallel_region() ? 1 : at::get_num_threads();
  if (threads == 1 || count <= grain) return count;
  const int64_t ranges = std::min(threads, (count + grain - 1) / grain);
  return (count + ranges - 1) / ranges;
}

bool is_cut_within_vectors(int64_t count, int64_t width) {
  constexpr int64_t kAtensGrain = 1 << 15;
  const int64_t length = length_of_ranges(count, kAtensGrain);
  return length != count && (length % kVectors != 0 || width % kVectors != 0);
}

void run_all(const RowByRow& work, int64_t elements) {
  if (work.before) work.before();
  for_each_part(work.rows, elements, work.run);
}

int64_t number_of_parts(int64_t count, int64_t elements) {
  constexpr int64_t kWorthAThread = 1 << 14;
  const int64_t most = std::min<int64_t>(count, at::get_num_threads());
  return std::max<int64_t>(std::min(elements / kWorthAThread, most), 1);
}

void for_each_part(int64_t count, int64_t elements, const std::function<void(int64_t begin, int64_t end)>& part) {
  const int64_t parts = number_of_parts(count, elements);
  run_tasks(parts, [&](int64_t i) { part(count * i / parts, count * (i + 1) / parts); });
}

bool on_all_ranges(int64_t count, int64_t elements, const std::function<bool(const IndexRange& range)>& work) {
  return on_all_parts(count, number_of_parts(count, elements),
                      [&](int64_t, const IndexRange& range) { return work(range); });
}

bool on_all_parts(int64_t count, int64_t parts,
                  const std::function<bool(int64_t part, const IndexRange& range)>& work) {
  std::atomic<bool> all = true;
  run_tasks(parts, [&](int64_t i) {
    if (!work(i, {count * i / parts, count * (i + 1) / parts})) all = false;
  });
  return all;
}

float* scratch_memory(int64_t floats) {
  constexpr std::size_t kAlignment = 64;
  thread_local std::vector<float> memory;
  std::size_t bytes = (floats + kAlignment) * sizeof(float);
  if (memory.size() * sizeof(float) < bytes) std::vector<float>(floats + kAlignment).swap(memory);
  void* begin = memory.data();
  return static_cast<float*>(std::align(kAlignment, floats * sizeof(float), begin, bytes));
}

double time_ratio(const std::function<void()>& ours, const std::function<void()>& theirs) {
  constexpr double kEnough = 5e-3, kLong = 1.0;  // seconds
  constexpr int kFewest = 3;                     // the first one finds cold caches
  constexpr int kMost = 50;
  const auto time_of = [](const std::function<void()>& work) {
    const Stopwatch time;
    work();
    return time.seconds();
  };
  double our_best = 1e9, their_best = 1e9, total = 0;
  for (int run = 0; run < kMost && (total < kEnough || (run < kFewest && total < kLong)); ++run) {
    const double our_time = time_of(ours), their_time = time_of(theirs);
    our_best = std::min(our_best, our_time), their_best = std::min(their_best, their_time);
    total += our_time + their_time;
  }
  return our_best / their_best;
}

Pair pair_of(const c10::IValue& value, const Pair& otherwise) {
  const std::vector<int64_t> numbers = value.isIntList() ? value.toIntVector() : std::vector<int64_t>();
  return numbers.empty() ? otherwise : Pair{numbers.front(), numbers.back()};
}

bool threads_round_alike() {
  const KernelSettings settings = kernel_settings();
  if (settings.threads == 1) return true;
  std::atomic<bool> alike = !settings.flushes_denormals;
  run_tasks(settings.threads, [&](int64_t) {
    if (flushes_denormals() || std::fegetround() != settings.rounding) alike = false;
  });
  return alike;
}

bool rounding_is_default() {
  const KernelSettings settings = kernel_settings();
  return !settings.flushes_denormals && settings.rounding == FE_TONEAREST && threads_round_alike();
}

}  // namespace duet
