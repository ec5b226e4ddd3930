#include "graph/kernels/kernel_threads.h"
#include <atomic>
#include <dlfcn.h>

namespace duet {

namespace {

// What `#pragma omp parallel` compiles to. Looked up instead of linked: the threads must be those of the OpenMP library
// that LibTorch brought, and duet itself needs none.
using Parallel = void (*)(void (*body)(void*), void* data, unsigned threads, unsigned flags);

Parallel openmp_parallel() {
  static const auto found = reinterpret_cast<Parallel>(dlsym(RTLD_DEFAULT, "GOMP_parallel"));
  return found;
}

struct Work {
  int64_t count;
  const std::function<void(int64_t)>& task;
  std::atomic<int64_t> next{0};
};

void take_tasks(void* data) {
  Work& work = *static_cast<Work*>(data);
  for (int64_t i = work.next++; i < work.count; i = work.next++) work.task(i);
}

}  // namespace

void run_tasks(int64_t count, const std::function<void(int64_t)>& task) {
  Work work{count, task};
  const Parallel parallel = count > 1 ? openmp_parallel() : nullptr;
  if (parallel != nullptr) {
    parallel(take_tasks, &work, static_cast<unsigned>(count), 0);
  } else {
    take_tasks(&work);
  }
}

}  // namespace duet
