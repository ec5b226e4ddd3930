#include "hooks/loggers/async_sink.h"
#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <exception>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <unistd.h>
#include "base/log.h"

namespace duet {

// A sink until it fails.
class AsyncSink::GuardedSink {
 public:
  explicit GuardedSink(std::unique_ptr<LogSink> sink) : sink_(std::move(sink)) {}

  void write(const LogRecord& record) {
    if (!record.images.empty() && !sink_->takes_images()) return;
    if (record.kind == "progress" && !sink_->shows_progress()) return;
    guarded([&] { sink_->write(record); });
  }
  void flush() {
    guarded([&] { sink_->flush(); });
  }
  // Its destructor is not run.
  void abandon() { static_cast<void>(sink_.release()); }

 private:
  template <class Call>
  void guarded(const Call& call) {
    if (given_up_) return;
    try {
      call();
      return;
    } catch (const std::exception& error) {
      log_error(std::string("[LoggerHook] what is logged from here on is missing in one place, training goes on: ") +
                error.what());
    } catch (...) {
      log_error("[LoggerHook] what is logged from here on is missing in one place, training goes on: unknown error");
    }
    given_up_ = true;
  }

  std::unique_ptr<LogSink> sink_;
  bool given_up_ = false;
};

class AsyncSink::Worker {
 public:
  explicit Worker(std::vector<GuardedSink> sinks);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  void put(LogRecord record);
  void flush();
  // Writes what is left and ends the thread; later records are written by who puts them.
  void close();

 private:
  class Open;
  // What a process that forks cannot take over: threads are not copied, and a lock may be held for ever.
  struct Shared {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<LogRecord> queue;
    std::thread thread;
    bool flushing = false;
    bool closing = false;
  };

  bool is_mine() const { return process_ == getpid(); }
  void adopt();
  void run(Shared& shared);
  void write_now(const LogRecord& record);

  std::vector<GuardedSink> sinks_;
  std::unique_ptr<Shared> shared_ = std::make_unique<Shared>();
  pid_t process_ = getpid();
};

// All that is open, so that exit() finds it. Never destroyed: it may be asked during exit().
class AsyncSink::Worker::Open {
 public:
  static Open& instance() {
    static Open* const kInstance = [] {
      log(LogLevel::kDebug, "");  // the log is destroyed after what is registered from here on has run
      std::atexit([] { instance().close_all(); });
      return new Open;
    }();
    return *kInstance;
  }

  void add(Worker* worker) {
    const std::lock_guard lock(mutex_);
    workers_.push_back(worker);
  }
  void remove(Worker* worker) {
    const std::lock_guard lock(mutex_);
    workers_.erase(std::remove(workers_.begin(), workers_.end(), worker), workers_.end());
  }

 private:
  void close_all() {
    const std::lock_guard lock(mutex_);
    for (Worker* worker : workers_) worker->close();
  }

  std::mutex mutex_;
  std::vector<Worker*> workers_;
};

AsyncSink::Worker::Worker(std::vector<GuardedSink> sinks) : sinks_(std::move(sinks)) { Open::instance().add(this); }

AsyncSink::Worker::~Worker() {
  Open::instance().remove(this);
  close();
  if (is_mine()) return;
  // A copy in another process that wrote nothing: files and threads are the parent's.
  for (GuardedSink& sink : sinks_) sink.abandon();
  static_cast<void>(shared_.release());
}

void AsyncSink::Worker::adopt() {
  if (is_mine()) return;
  static_cast<void>(shared_.release());
  shared_ = std::make_unique<Shared>();
  process_ = getpid();
}

void AsyncSink::Worker::put(LogRecord record) {
  adopt();
  Shared& shared = *shared_;
  bool queued = false;
  {
    const std::lock_guard lock(shared.mutex);
    if (!shared.closing && !shared.thread.joinable()) {
      try {
        shared.thread = std::thread([this, &shared] { run(shared); });
      } catch (const std::system_error&) {
        shared.closing = true;  // no thread to be had
      }
    }
    queued = !shared.closing;
    if (queued) shared.queue.push_back(std::move(record));
  }
  if (queued) {
    shared.changed.notify_all();
  } else {
    write_now(record);
  }
}

void AsyncSink::Worker::write_now(const LogRecord& record) {
  for (GuardedSink& sink : sinks_) sink.write(record);
}

void AsyncSink::Worker::flush() {
  if (!is_mine()) return;
  Shared& shared = *shared_;
  std::unique_lock lock(shared.mutex);
  if (!shared.thread.joinable()) {
    for (GuardedSink& sink : sinks_) sink.flush();
    return;
  }
  shared.flushing = true;
  shared.changed.notify_all();
  shared.changed.wait(lock, [&] { return !shared.flushing; });
}

void AsyncSink::Worker::close() {
  if (!is_mine()) return;
  Shared& shared = *shared_;
  {
    const std::lock_guard lock(shared.mutex);
    shared.closing = true;
  }
  shared.changed.notify_all();
  if (shared.thread.joinable() && shared.thread.get_id() != std::this_thread::get_id()) shared.thread.join();
}

void AsyncSink::Worker::run(Shared& shared) {
  std::unique_lock lock(shared.mutex);
  while (true) {
    shared.changed.wait(lock, [&] { return !shared.queue.empty() || shared.flushing || shared.closing; });
    if (!shared.queue.empty()) {
      const LogRecord record = std::move(shared.queue.front());
      shared.queue.pop_front();
      lock.unlock();
      write_now(record);
      lock.lock();
      continue;
    }
    const bool ends = shared.closing;
    lock.unlock();
    for (GuardedSink& sink : sinks_) sink.flush();
    lock.lock();
    if (!shared.queue.empty()) continue;
    shared.flushing = false;
    shared.changed.notify_all();
    if (ends) return;
  }
}

AsyncSink::AsyncSink(std::vector<std::unique_ptr<LogSink>> sinks) {
  std::vector<GuardedSink> others;
  for (auto& sink : sinks) {
    takes_images_ = takes_images_ || sink->takes_images();
    shows_progress_ = shows_progress_ || sink->shows_progress();
    auto& place = sink->keeps_log_order() ? in_log_order_ : others;
    place.emplace_back(std::move(sink));
  }
  if (!others.empty()) worker_ = std::make_unique<Worker>(std::move(others));
}

AsyncSink::~AsyncSink() = default;

void AsyncSink::put(LogRecord record) {
  for (GuardedSink& sink : in_log_order_) sink.write(record);
  if (worker_) worker_->put(std::move(record));
}

void AsyncSink::flush() {
  for (GuardedSink& sink : in_log_order_) sink.flush();
  if (worker_) worker_->flush();
}

}  // namespace duet
