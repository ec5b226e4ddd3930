#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>
#include "base/batch.h"
#include "base/state_dict.h"
#include "data/data_source.h"

namespace duet {

// Threads that read batches in any order; take() gives them in the order of submit(). One thread calls the functions.
class BatchWorkers {
 public:
  BatchWorkers(int count, std::size_t capacity);
  // No thread begins with another batch. One whose read takes too long is left behind, with what that uses.
  ~BatchWorkers();
  BatchWorkers(const BatchWorkers&) = delete;
  BatchWorkers& operator=(const BatchWorkers&) = delete;

  bool empty() const { return submitted_.empty(); }
  int64_t count() const { return static_cast<int64_t>(submitted_.size()); }
  bool full() const { return submitted_.size() >= capacity_; }

  // `position`: the sampler's state after this batch. `read` holds all that it uses.
  void submit(std::function<Batch()> read, StateDict position);
  // Waits for the batch submitted first. False once `should_stop` says so: then it stays the first.
  bool wait(const ShouldStop& should_stop);
  // That batch and its position. Rethrows what reading it threw.
  std::pair<Batch, StateDict> take();
  // Forgets what was submitted. A batch being read now ends in its job, which nobody takes.
  void clear();

 private:
  using Job = std::packaged_task<Batch()>;

  // What the threads use: those that are left behind keep it.
  struct Jobs {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<Job> waiting;
    int threads = 0;
    bool closed = false;

    void run();
    // Whether all threads have ended in this time.
    bool close(std::chrono::seconds most);
  };

  const std::size_t capacity_;
  std::deque<std::pair<std::future<Batch>, StateDict>> submitted_;
  bool broken_off_ = false;  // the last wait
  const std::shared_ptr<Jobs> jobs_ = std::make_shared<Jobs>();
  std::vector<std::thread> threads_;
};

}  // namespace duet
