#pragma once

#include <cstdint>
#include <functional>

namespace duet {

// Runs task(0) ... task(count - 1) and returns when all are done: on the threads that LibTorch computes with
// (OpenMP's), or one after the other if this LibTorch has none. A task must not throw.
void run_tasks(int64_t count, const std::function<void(int64_t)>& task);

}  // namespace duet
