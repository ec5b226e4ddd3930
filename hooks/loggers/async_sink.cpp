#include "hooks/loggers/async_sink.h"
#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <set>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <c10/util/StringUtil.h>
#include <unistd.h>
#include "base/detail/text.h"
#include "base/log.h"

namespace duet {

namespace {

// About what a record takes of the memory.
uint64_t bytes_of(const LogRecord& record) {
  uint64_t bytes = sizeof record + record.line.size();
  for (const auto& [name, value] : record.values) {
    const auto* const text = std::get_if<std::string>(&value);
    bytes += sizeof value + name.size() + (text == nullptr ? 0 : text->size());
  }
  for (const auto& [name, made] : record.histograms) bytes += 16 * made.edges.size();
  for (const LogImage& image : record.images) bytes += image.pixels.defined() ? image.pixels.nbytes() : 0;
  return bytes;
}

}  // namespace

// A sink, the records that wait for it and the thread that hands them over. The lock is open while the sink is called.
class AsyncSink::Queue {
 public:
  Queue(std::unique_ptr<LogSink> sink, std::chrono::milliseconds patience)
      : sink_(std::move(sink)), patience_(patience) {}

  static void start(const std::shared_ptr<Queue>& queue) try {
    queue->thread_ = std::thread([queue] { queue->run(); });
  } catch (const std::system_error&) {  // no more threads: records are written in place
  }
  void put(const LogRecord& record);
  void flush();
  void close();

 private:
  using Lock = std::unique_lock<std::mutex>;

  void run();
  // After a fork: the lock may be held by a thread that is not there.
  bool is_of_parent() const { return process_ != getpid() && !sink_->keeps_log_order(); }
  bool has_thread() const { return thread_.joinable() && !ended_; }
  void write(Lock& lock);
  void write_and_flush(Lock& lock);
  template <class Call>
  bool goes_through(Lock& lock, const Call& call);
  template <class Condition>
  bool wait(Lock& lock, const Condition& condition);
  void pop();
  void note_lost(const LogRecord& record);
  void tell(bool fails);

  std::unique_ptr<LogSink> sink_;
  std::chrono::milliseconds patience_;
  pid_t process_ = getpid();
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::thread thread_;
  bool has_work_ = false, flushing_ = false, closing_ = false, ended_ = false, left_behind_ = false;
  std::deque<LogRecord> waiting_;
  uint64_t bytes_ = 0;    // of these
  int64_t calls_ = 0;     // of the sink, that have come back
  int64_t hung_at_ = -1;  // after so many calls: nobody waits for it again before there is another one
  bool fails_ = false;    // takes nothing at the moment
  std::string why_;       // the last call failed that did
  int64_t lost_ = 0, first_lost_ = 0, last_lost_ = 0;  // records, and the steps they are of
};

void AsyncSink::Queue::put(const LogRecord& record) {
  if (is_of_parent()) return;
  if (!record.images.empty() && !sink_->takes_images()) return;
  if (record.kind == "progress" && !sink_->shows_progress()) return;
  Lock lock(mutex_);
  if (left_behind_) return;  // lost, as close() has said
  const uint64_t bytes = bytes_of(record);
  if (bytes_ + bytes > kMaxBytes && !waiting_.empty()) return note_lost(record);
  bytes_ += bytes;
  waiting_.push_back(record);
  if (!has_thread()) return write(lock);
  has_work_ = true;
  changed_.notify_all();
}

void AsyncSink::Queue::pop() {
  bytes_ -= bytes_of(waiting_.front());
  waiting_.pop_front();
}

void AsyncSink::Queue::note_lost(const LogRecord& record) {
  first_lost_ = lost_ == 0 ? record.step : std::min(first_lost_, record.step);
  last_lost_ = lost_ == 0 ? record.step : std::max(last_lost_, record.step);
  ++lost_;
}

template <class Call>
bool AsyncSink::Queue::goes_through(Lock& lock, const Call& call) {
  lock.unlock();
  const std::exception_ptr error = caught(call);
  lock.lock();
  ++calls_;
  if (error) why_ = text_of(error);
  return !error;
}

// Records that fail before one that can be written are lost; where none of several can be, they wait for the next call.
void AsyncSink::Queue::write(Lock& lock) {
  constexpr std::size_t kTries = 8;
  std::size_t failed = 0;
  while (failed < std::min(waiting_.size(), kTries)) {
    const LogRecord& record = waiting_[failed];
    if (!goes_through(lock, [&] { sink_->write(record); })) {
      ++failed;
      continue;
    }
    for (; failed > 0; --failed) {
      note_lost(waiting_.front());
      pop();
    }
    pop();
  }
  tell(failed > 0);
}

// That the sink begins or ceases to fail, and what was lost.
void AsyncSink::Queue::tell(bool fails) {
  const bool failed = std::exchange(fails_, fails);
  if (fails && !failed) {
    log_error("[LoggerHook] one place takes no lines at the moment, training goes on and they are kept: " + why_);
  }
  if (fails) return;
  if (failed) log_info(std::string("[LoggerHook] lines are written again") + (lost_ == 0 ? ", none is lost" : ""));
  if (lost_ > 0) {
    log_warning(c10::str("[LoggerHook] lost records: ", lost_, " (steps ", first_lost_, " to ", last_lost_,
                         "): ", why_.empty() ? "lines came faster than they could be written" : why_));
  }
  lost_ = 0;
  why_.clear();
}

void AsyncSink::Queue::write_and_flush(Lock& lock) {
  write(lock);
  if (fails_ || goes_through(lock, [this] { sink_->flush(); })) return;
  log_error("[LoggerHook] lines may be missing in one place: " + std::exchange(why_, {}));
}

// False if nothing was written for `patience_`. A disk that is slow is waited for, however much there is to write.
template <class Condition>
bool AsyncSink::Queue::wait(Lock& lock, const Condition& condition) {
  for (int64_t calls = calls_; calls != hung_at_; calls = calls_) {
    if (changed_.wait_for(lock, patience_, condition)) return true;
    if (calls_ == calls) hung_at_ = calls;
  }
  return condition();
}

void AsyncSink::Queue::flush() {
  if (is_of_parent()) return;
  Lock lock(mutex_);
  if (left_behind_) return;
  if (!has_thread()) return write_and_flush(lock);
  flushing_ = true;
  changed_.notify_all();
  const bool is_known = hung_at_ == calls_;
  if (wait(lock, [this] { return !flushing_; }) || is_known) return;
  log_warning(
      "[LoggerHook] a place for lines takes none at the moment (a disk or network that hangs?), and nobody waits for "
      "it any more");
}

void AsyncSink::Queue::close() {
  if (is_of_parent()) return;
  Lock lock(mutex_);
  closing_ = true;
  changed_.notify_all();
  if (!thread_.joinable() || thread_.get_id() == std::this_thread::get_id()) return;
  if (wait(lock, [this] { return ended_; })) {
    lock.unlock();
    return thread_.join();
  }
  left_behind_ = true;
  thread_.detach();
  log_error("[LoggerHook] a place for lines hangs (a disk or network?) and is left behind; the last lines may be lost");
}

void AsyncSink::Queue::run() {
  Lock lock(mutex_);
  while (!ended_) {
    changed_.wait(lock, [this] { return has_work_ || flushing_ || closing_; });
    const bool flushes = flushing_, ends = closing_;
    has_work_ = false;
    flushes || ends ? write_and_flush(lock) : write(lock);
    if (ends && fails_) {
      for (; !waiting_.empty(); pop()) note_lost(waiting_.front());
      log_error(c10::str("[LoggerHook] lost records, which one place could not take: ", lost_, " (steps ", first_lost_,
                         " to ", last_lost_, "): ", why_));
    }
    if (flushes) flushing_ = false;
    ended_ = ends && waiting_.empty();  // more may have come meanwhile
    changed_.notify_all();
  }
}

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

AsyncSink::AsyncSink(std::vector<std::unique_ptr<LogSink>> sinks, std::chrono::milliseconds patience) {
  for (auto& sink : sinks) {
    takes_images_ = takes_images_ || sink->takes_images();
    shows_progress_ = shows_progress_ || sink->shows_progress();
    const bool has_thread = !sink->keeps_log_order();
    queues_.push_back(std::make_shared<Queue>(std::move(sink), patience));
    if (has_thread) Queue::start(queues_.back());
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
}

void AsyncSink::put(const LogRecord& record) {
  for (const auto& queue : queues_) queue->put(record);
}

void AsyncSink::flush() {
  for (const auto& queue : queues_) queue->flush();
}

void AsyncSink::close() {
  for (const auto& queue : queues_) queue->close();
}

}  // namespace duet
