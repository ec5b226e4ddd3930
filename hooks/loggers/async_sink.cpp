#include "hooks/loggers/async_sink.h"
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <set>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <unistd.h>
#include "base/log.h"
#include "hooks/loggers/guarded_sink.h"
#include "hooks/loggers/record_queue.h"

namespace duet {

// What a process that forks cannot take over: threads are not copied, and a lock may be held for ever.
struct AsyncSink::Shared {
  std::mutex mutex;
  std::condition_variable changed;
  RecordQueue queue;
  LostRecords lost;  // that the queue had no room for
  std::thread thread;
  bool flushing = false;
  bool closing = false;
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

AsyncSink::AsyncSink(std::vector<std::unique_ptr<LogSink>> sinks)
    : shared_(std::make_unique<Shared>()), process_(getpid()) {
  for (auto& sink : sinks) {
    takes_images_ = takes_images_ || sink->takes_images();
    shows_progress_ = shows_progress_ || sink->shows_progress();
    auto& place = sink->keeps_log_order() ? in_log_order_ : others_;
    place.emplace_back(std::move(sink));
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
  if (is_mine()) return;
  // A copy in another process that wrote nothing: files and threads are the parent's.
  for (GuardedSink& sink : others_) sink.abandon();
  static_cast<void>(shared_.release());
}

bool AsyncSink::is_mine() const { return process_ == getpid(); }

void AsyncSink::put(LogRecord record) {
  for (GuardedSink& sink : in_log_order_) sink.write(record);
  if (others_.empty()) return;
  if (!is_mine()) {
    static_cast<void>(shared_.release());
    shared_ = std::make_unique<Shared>();
    process_ = getpid();
  }
  if (enqueue(record)) {
    shared_->changed.notify_all();
  } else {
    write_now(record);
  }
}

// Takes the record; false: there is no thread any more.
bool AsyncSink::enqueue(LogRecord& record) {
  Shared& shared = *shared_;
  const std::lock_guard lock(shared.mutex);
  if (!shared.closing && !shared.thread.joinable()) {
    try {
      shared.thread = std::thread([this, &shared] { run(shared); });
    } catch (const std::system_error&) {
      shared.closing = true;  // no thread to be had
    }
  }
  if (shared.closing) return false;
  if (!shared.queue.push(std::move(record))) shared.lost.add(record);
  return true;
}

void AsyncSink::write_now(const LogRecord& record) {
  for (GuardedSink& sink : others_) sink.write(record);
}

void AsyncSink::flush() {
  for (GuardedSink& sink : in_log_order_) sink.flush();
  if (!is_mine()) return;
  Shared& shared = *shared_;
  std::unique_lock lock(shared.mutex);
  if (!shared.thread.joinable()) {
    for (GuardedSink& sink : others_) sink.flush();
    return;
  }
  shared.flushing = true;
  shared.changed.notify_all();
  shared.changed.wait(lock, [&] { return !shared.flushing; });
}

void AsyncSink::close() {
  if (!is_mine()) return;
  Shared& shared = *shared_;
  {
    const std::lock_guard lock(shared.mutex);
    shared.closing = true;
  }
  shared.changed.notify_all();
  if (shared.thread.joinable() && shared.thread.get_id() != std::this_thread::get_id()) shared.thread.join();
}

void AsyncSink::run(Shared& shared) {
  std::unique_lock lock(shared.mutex);
  while (true) {
    shared.changed.wait(lock, [&] { return !shared.queue.empty() || shared.flushing || shared.closing; });
    if (!shared.queue.empty()) {
      const LogRecord record = shared.queue.pop();
      lock.unlock();
      write_now(record);
      lock.lock();
      continue;
    }
    const bool ends = shared.closing;
    const LostRecords lost = std::exchange(shared.lost, {});
    lock.unlock();
    if (lost.count > 0) {
      log_warning("[LoggerHook] lines came faster than they could be written; lost are " + lost.text());
    }
    for (GuardedSink& sink : others_) ends ? sink.finish() : sink.flush();
    lock.lock();
    if (!shared.queue.empty()) continue;
    shared.flushing = false;
    shared.changed.notify_all();
    if (ends) return;
  }
}

}  // namespace duet
