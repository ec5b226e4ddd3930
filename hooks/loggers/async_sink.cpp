#include "hooks/loggers/async_sink.h"
#include <condition_variable>
#include <cstdlib>
#include <set>
#include <system_error>
#include <thread>
#include <utility>
#include <unistd.h>
#include "base/log.h"

namespace duet {

struct AsyncSink::Shared {
  void run();
  // The thread, if there is one or can be one.
  bool has_thread(const std::shared_ptr<Shared>& self);
  int64_t calls() const {
    int64_t count = 0;
    for (const GuardedSink& sink : sinks) count += sink.calls();
    return count;
  }

  std::deque<GuardedSink> sinks;  // but for put(), the thread's, while there is one
  std::mutex mutex;               // guards what follows
  std::condition_variable changed;
  std::thread thread;
  bool has_work = false, flushing = false, closing = false;
  bool ended = false;
  bool left_behind = false;
  int64_t hung_at = -1;  // after so many calls of the sinks: nobody waits for it again before there is another one
};

namespace {

struct OpenSinks {
  std::mutex mutex;
  std::set<AsyncSink*> sinks;
};

// All that are open, so that exit() finds them. Never destroyed: it may be asked during exit().
OpenSinks& open_sinks() {
  static OpenSinks* const kOpen = [] {
    log(LogLevel::kDebug, "");  // the log is destroyed after what is registered from here on has run
    std::atexit([] {
      const std::lock_guard lock(open_sinks().mutex);
      for (AsyncSink* sink : open_sinks().sinks) sink->close();
    });
    return new OpenSinks;
  }();
  return *kOpen;
}

}  // namespace

AsyncSink::AsyncSink(std::vector<std::unique_ptr<LogSink>> sinks, std::chrono::milliseconds patience)
    : shared_(std::make_shared<Shared>()), patience_(patience), process_(getpid()) {
  for (auto& sink : sinks) {
    takes_images_ = takes_images_ || sink->takes_images();
    shows_progress_ = shows_progress_ || sink->shows_progress();
    (sink->keeps_log_order() ? in_log_order_ : shared_->sinks).emplace_back(std::move(sink));
  }
  const std::lock_guard lock(open_sinks().mutex);
  open_sinks().sinks.insert(this);
}

AsyncSink::~AsyncSink() {
  {
    const std::lock_guard lock(open_sinks().mutex);
    open_sinks().sinks.erase(this);
  }
  close();
  if (!is_mine()) static_cast<void>(new std::shared_ptr<Shared>(std::move(shared_)));  // the parent's: nobody ends it
}

bool AsyncSink::is_mine() const { return process_ == getpid(); }

void AsyncSink::put(const LogRecord& record) {
  for (GuardedSink& sink : in_log_order_) {
    sink.put(record);
    sink.write_waiting();
  }
  if (!is_mine() || shared_->sinks.empty()) return;
  const std::lock_guard lock(shared_->mutex);
  if (shared_->left_behind) return;  // lost, as close() has said
  for (GuardedSink& sink : shared_->sinks) sink.put(record);
  if (shared_->has_thread(shared_)) {
    shared_->has_work = true;
    shared_->changed.notify_all();
  } else {
    for (GuardedSink& sink : shared_->sinks) sink.write_waiting();
  }
}

bool AsyncSink::Shared::has_thread(const std::shared_ptr<Shared>& self) {
  if (closing || thread.joinable()) return !closing;
  try {
    thread = std::thread([self] { self->run(); });
  } catch (const std::system_error&) {
    closing = true;  // no thread to be had
  }
  return !closing;
}

// False if nothing was written for `patience_`. A disk that is slow is waited for, however much there is to write.
template <class Condition>
bool AsyncSink::wait(std::unique_lock<std::mutex>& lock, const Condition& condition) {
  Shared& shared = *shared_;
  for (int64_t calls = shared.calls(); calls != shared.hung_at; calls = shared.calls()) {
    if (shared.changed.wait_for(lock, patience_, condition)) return true;
    if (shared.calls() == calls) shared.hung_at = calls;
  }
  return condition();
}

void AsyncSink::flush() {
  for (GuardedSink& sink : in_log_order_) sink.flush();
  if (!is_mine()) return;
  Shared& shared = *shared_;
  std::unique_lock lock(shared.mutex);
  if (shared.left_behind) return;
  if (!shared.thread.joinable()) {
    for (GuardedSink& sink : shared.sinks) sink.flush();
    return;
  }
  shared.flushing = true;
  shared.changed.notify_all();
  const bool is_known = shared.hung_at == shared.calls();
  if (wait(lock, [&] { return !shared.flushing; }) || is_known) return;
  log_warning(
      "[LoggerHook] the places for lines take none at the moment (a disk or network that hangs?), and nobody "
      "waits for them any more");
}

void AsyncSink::close() {
  if (!is_mine()) return;
  Shared& shared = *shared_;
  std::unique_lock lock(shared.mutex);
  shared.closing = true;
  shared.changed.notify_all();
  if (!shared.thread.joinable() || shared.thread.get_id() == std::this_thread::get_id()) return;
  if (wait(lock, [&] { return shared.ended; })) {
    lock.unlock();
    return shared.thread.join();
  }
  shared.left_behind = true;
  shared.thread.detach();
  log_error("[LoggerHook] a place for lines hangs (a disk or network?) and is left behind; the last lines may be lost");
}

void AsyncSink::Shared::run() {
  std::unique_lock lock(mutex);
  while (!ended) {
    changed.wait(lock, [this] { return has_work || flushing || closing; });
    has_work = false;
    const bool flushes = flushing, ends = closing;
    lock.unlock();
    for (GuardedSink& sink : sinks) {
      if (ends) {
        sink.finish();
      } else if (flushes) {
        sink.flush();
      } else {
        sink.write_waiting();
      }
    }
    lock.lock();
    if (flushes) flushing = false;
    ended = ends;
    changed.notify_all();
  }
}

}  // namespace duet
