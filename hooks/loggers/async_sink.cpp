#include "hooks/loggers/async_sink.h"
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <set>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <c10/util/StringUtil.h>
#include <unistd.h>
#include "base/log.h"
#include "hooks/loggers/guarded_sink.h"
#include "hooks/loggers/record_queue.h"

namespace duet {

// What a process that forks cannot take over: threads are not copied, and a lock may be held for ever.
struct AsyncSink::Shared {
  explicit Shared(std::vector<GuardedSink> places) : sinks(std::move(places)) {}

  void run();
  void write(const LogRecord& record) {
    for (GuardedSink& sink : sinks) sink.write(record);
  }

  std::vector<GuardedSink> sinks;  // the thread's, while there is one
  std::mutex mutex;
  std::condition_variable changed;
  RecordQueue queue;
  LostRecords lost;  // that the queue had no room for
  std::thread thread;
  int64_t written = 0;
  bool flushing = false;
  bool closing = false;
  bool ended = false;
  bool left_behind = false;
  bool hangs = false;  // nobody waits for it again before something is written
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

// For ever, with its thread and its sinks.
template <class Shared>
void leave(std::shared_ptr<Shared> shared) {
  static_cast<void>(new std::shared_ptr<Shared>(std::move(shared)));
}

}  // namespace

AsyncSink::AsyncSink(std::vector<std::unique_ptr<LogSink>> sinks, std::chrono::milliseconds patience)
    : patience_(patience), process_(getpid()) {
  std::vector<GuardedSink> others;
  for (auto& sink : sinks) {
    takes_images_ = takes_images_ || sink->takes_images();
    shows_progress_ = shows_progress_ || sink->shows_progress();
    auto& place = sink->keeps_log_order() ? in_log_order_ : others;
    place.emplace_back(std::move(sink));
  }
  shared_ = std::make_shared<Shared>(std::move(others));
  const std::lock_guard lock(open_sinks().mutex);
  open_sinks().sinks.insert(this);
}

AsyncSink::~AsyncSink() {
  {
    const std::lock_guard lock(open_sinks().mutex);
    open_sinks().sinks.erase(this);
  }
  close();
  if (!is_mine()) leave(std::move(shared_));  // a copy that wrote nothing: files and threads are the parent's
}

bool AsyncSink::is_mine() const { return process_ == getpid(); }

void AsyncSink::put(LogRecord record) {
  for (GuardedSink& sink : in_log_order_) sink.write(record);
  if (!is_mine()) {
    const auto parents = std::exchange(shared_, std::make_shared<Shared>(std::move(shared_->sinks)));
    leave(parents);
    process_ = getpid();
  }
  if (shared_->sinks.empty()) return;
  if (enqueue(record)) {
    shared_->changed.notify_all();
  } else {
    shared_->write(record);
  }
}

// Takes the record; false: there is no thread any more.
bool AsyncSink::enqueue(LogRecord& record) {
  Shared& shared = *shared_;
  const std::lock_guard lock(shared.mutex);
  if (shared.left_behind) return true;  // lost, as close() has said
  if (!shared.closing && !shared.thread.joinable()) {
    try {
      shared.thread = std::thread([shared = shared_] { shared->run(); });
    } catch (const std::system_error&) {
      shared.closing = true;  // no thread to be had
    }
  }
  if (shared.closing) return false;
  if (!shared.queue.push(std::move(record))) shared.lost.add(record);
  return true;
}

// False if nothing was written for `patience_`. A disk that is slow is waited for, however much there is to write.
template <class Condition>
bool AsyncSink::wait(std::unique_lock<std::mutex>& lock, const Condition& condition) {
  Shared& shared = *shared_;
  while (!shared.hangs) {
    const int64_t before = shared.written;
    if (shared.changed.wait_for(lock, patience_, condition)) return true;
    shared.hangs = shared.written == before;
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
  const bool hung = shared.hangs;
  if (wait(lock, [&] { return !shared.flushing; }) || hung) return;
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
  log_error(
      "[LoggerHook] a place for lines hangs (a disk or network?) and is left behind; the last lines may be lost, " +
      c10::str(shared.queue.size()) + " of them were not begun");
}

void AsyncSink::Shared::run() {
  std::unique_lock lock(mutex);
  while (true) {
    changed.wait(lock, [this] { return !queue.empty() || flushing || closing; });
    if (!queue.empty()) {
      const LogRecord record = queue.pop();
      lock.unlock();
      write(record);
      lock.lock();
      ++written;
      hangs = false;
      continue;
    }
    const bool ends = closing;
    const LostRecords what = std::exchange(lost, {});
    lock.unlock();
    if (what.count > 0) {
      log_warning("[LoggerHook] lines came faster than they could be written; lost are " + what.text());
    }
    for (GuardedSink& sink : sinks) ends ? sink.finish() : sink.flush();
    lock.lock();
    ++written;
    hangs = false;
    if (!queue.empty()) continue;
    flushing = false;
    ended = ends;
    changed.notify_all();
    if (ends) return;
  }
}

}  // namespace duet
