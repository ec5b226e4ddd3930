#include "graph/kernels/onednn_threads.h"
#include <algorithm>
#include <cmath>
#include <ATen/Parallel.h>

namespace duet {

namespace {

// Of adjust_thread_count in oneDNN's gemm_driver.cpp: as many as gain more than their start takes.
int64_t threads_that_gain(const OneDnnProduct& p, int64_t threads) {
  constexpr int64_t kVector = 8, kVectorsOfThread = 3, kFewThreads = 4;
  if (p.n > 50 && p.m <= 3) return threads;
  if (p.m > 10 * p.n && p.n < threads && p.m / threads < kVector * kVectorsOfThread)
    threads = std::max<int64_t>(p.m / kVector / kVectorsOfThread, 1);
  const double cycles = static_cast<double>(p.m * p.n * p.k) / (2 * kVector);
  const bool few = threads <= kFewThreads;
  const auto start = [few](int64_t count) { return few ? 3e3 : 4e3 + 5e2 * static_cast<double>(count); };
  if (cycles < start(few ? 1 : 2)) return 1;
  int64_t count = threads;
  while (count > 1 && start(count) * static_cast<double>(count) >= cycles * static_cast<double>(count - 1)) {
    count -= few ? 1 : count < 10 ? 2 : count < 30 ? 4 : 8;
  }
  return std::max<int64_t>(count, 1);
}

// The largest number of parts of one side, about the root of all, that leaves a whole number of the other's.
int64_t parts_near_root(int64_t threads, int64_t most) {
  int64_t parts = std::min(static_cast<int64_t>(std::sqrt(static_cast<double>(threads))), most);
  while (parts > 1 && threads % parts != 0) --parts;
  return parts;
}

}  // namespace

// calc_nthr_nocopy_avx.
int64_t onednn_columns_of_thread(const OneDnnProduct& p) {
  const int64_t threads = threads_that_gain(p, at::in_parallel_region() ? 1 : at::get_num_threads());
  if (threads == 1) return p.n;
  int64_t of_m = at::divup(p.m, 64), of_n = at::divup(p.n, 48);
  if (of_m == 1) of_n = threads;
  if (of_n == 1) of_m = threads;
  while (of_m * of_n > threads) --(of_m > of_n ? of_m : of_n);
  while (of_m * of_n < threads) ++(of_m < of_n ? of_m : of_n);
  if (of_m * of_n > threads && of_m > 1 && of_n > 1) {
    of_n = of_m <= of_n ? threads / parts_near_root(threads, at::divup(p.m, 16)) : parts_near_root(threads, p.n);
  }
  return at::divup(p.n, of_n);
}

}  // namespace duet
