#include "data/detail/batch_workers.h"
#include "base/log.h"

namespace duet {

BatchWorkers::BatchWorkers(int count, std::size_t capacity) : capacity_(capacity) {
  for (int i = 0; i < count; ++i) {
    const std::lock_guard lock(jobs_->mutex);
    threads_.emplace_back([jobs = jobs_] { jobs->run(); });
    ++jobs_->threads;
  }
}

// A read that was waited for in vain gets little more time: the run was asked to stop.
BatchWorkers::~BatchWorkers() {
  clear();
  const bool all_ended = jobs_->close(broken_off_ ? std::chrono::seconds(1) : std::chrono::seconds(5));
  if (!all_ended) {
    log_warning(
        "[DataLoader] a batch is still being read at the end: the thread that reads it is left behind. If reads hang, "
        "look at what the dataset waits for: a network, a service, a lock");
  }
  for (std::thread& thread : threads_) all_ended ? thread.join() : thread.detach();
}

void BatchWorkers::submit(std::function<Batch()> read, StateDict position) {
  Job job(std::move(read));
  submitted_.emplace_back(job.get_future(), std::move(position));
  {
    const std::lock_guard lock(jobs_->mutex);
    jobs_->waiting.push_back(std::move(job));
  }
  jobs_->changed.notify_one();
}

bool BatchWorkers::wait(const ShouldStop& should_stop) {
  constexpr std::chrono::milliseconds kLookUp{100};
  const std::future<Batch>& batch = submitted_.front().first;
  broken_off_ = false;
  while (should_stop && !broken_off_ && batch.wait_for(kLookUp) == std::future_status::timeout) {
    broken_off_ = should_stop();
  }
  return !broken_off_;
}

std::pair<Batch, StateDict> BatchWorkers::take() {
  auto [batch, position] = std::move(submitted_.front());
  submitted_.pop_front();
  return {batch.get(), std::move(position)};
}

void BatchWorkers::clear() {
  submitted_.clear();
  const std::lock_guard lock(jobs_->mutex);
  jobs_->waiting.clear();
}

void BatchWorkers::Jobs::run() {
  std::unique_lock lock(mutex);
  while (true) {
    changed.wait(lock, [this] { return closed || !waiting.empty(); });
    if (closed) break;
    Job job = std::move(waiting.front());
    waiting.pop_front();
    lock.unlock();
    job();
    job = {};  // with the dataset, if this thread was left behind
    lock.lock();
  }
  --threads;
  changed.notify_all();
}

bool BatchWorkers::Jobs::close(std::chrono::seconds most) {
  std::unique_lock lock(mutex);
  closed = true;
  changed.notify_all();
  return changed.wait_for(lock, most, [this] { return threads == 0; });
}

}  // namespace duet
