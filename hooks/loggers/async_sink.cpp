#include "hooks/loggers/async_sink.h"
#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <iterator>
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
    bytes += sizeof(std::pair<std::string, LogValue>) + name.size();
    if (const auto* text = std::get_if<std::string>(&value)) bytes += text->size();
  }
  for (const auto& [name, made] : record.histograms) {
    bytes += name.size() + 8 * (made.counts.size() + made.edges.size());
  }
  for (const LogImage& image : record.images) bytes += image.pixels.defined() ? image.pixels.nbytes() : 0;
  return bytes;
}

}  // namespace

// A sink and the records that wait for it, under a lock that is open while the sink is called.
class AsyncSink::Place {
 public:
  using Lock = std::unique_lock<std::mutex>;

  explicit Place(std::unique_ptr<LogSink> sink) : sink_(std::move(sink)) {}

  void put(const LogRecord& record);
  // What waits; where the sink fails, after 1, 2, 4, ... 64 calls.
  void write(Lock& lock);
  void flush(Lock& lock);
  // No more records will come.
  void finish(Lock& lock);

  // Calls of the sink that have come back.
  int64_t calls() const { return calls_; }

 private:
  // Whether `call` went through; else why_ says why not.
  template <class Call>
  bool goes_through(Lock& lock, const Call& call);
  void try_waiting(Lock& lock);
  LogRecord take();
  void lose(const LogRecord& record);
  std::string told_lost();
  void tell(bool fails);

  std::unique_ptr<LogSink> sink_;
  std::deque<LogRecord> waiting_;
  uint64_t bytes_ = 0;  // of these
  int64_t calls_ = 0;
  bool fails_ = false;
  int64_t pause_ = 1, until_next_try_ = 0;  // in calls of write(): a try costs time, where a disk stays full
  std::string why_;
  int64_t lost_ = 0, first_lost_ = 0, last_lost_ = 0;  // how many records, and the steps they are of
};

void AsyncSink::Place::put(const LogRecord& record) {
  if (!record.images.empty() && !sink_->takes_images()) return;
  if (record.kind == "progress" && !sink_->shows_progress()) return;
  const uint64_t bytes = bytes_of(record);
  if (bytes_ + bytes > kMaxBytes && !waiting_.empty()) return lose(record);
  bytes_ += bytes;
  waiting_.push_back(record);
}

LogRecord AsyncSink::Place::take() {
  LogRecord record = std::move(waiting_.front());
  waiting_.pop_front();
  bytes_ -= bytes_of(record);
  return record;
}

void AsyncSink::Place::lose(const LogRecord& record) {
  first_lost_ = lost_ == 0 ? record.step : std::min(first_lost_, record.step);
  last_lost_ = lost_ == 0 ? record.step : std::max(last_lost_, record.step);
  ++lost_;
}

// "3 (steps 10 to 30)"; empty: none, or told before.
std::string AsyncSink::Place::told_lost() {
  const int64_t count = std::exchange(lost_, 0);
  return count == 0 ? "" : c10::str(count, " (steps ", first_lost_, " to ", last_lost_, ")");
}

template <class Call>
bool AsyncSink::Place::goes_through(Lock& lock, const Call& call) {
  lock.unlock();
  const std::exception_ptr error = caught(call);
  lock.lock();
  ++calls_;
  if (error) why_ = text_of(error);
  return !error;
}

void AsyncSink::Place::write(Lock& lock) {
  if (!fails_ || --until_next_try_ <= 0) try_waiting(lock);
}

// Those that fail before one that can be written are lost; where none of several can be, the place is full.
void AsyncSink::Place::try_waiting(Lock& lock) {
  constexpr int64_t kLongestPause = 64;
  constexpr std::size_t kTries = 8;
  std::vector<LogRecord> failed;
  while (!waiting_.empty() && failed.size() < kTries) {
    LogRecord record = take();
    if (!goes_through(lock, [&] { sink_->write(record); })) {
      failed.push_back(std::move(record));
      continue;
    }
    for (const LogRecord& unwritten : failed) lose(unwritten);
    failed.clear();
  }
  pause_ = fails_ ? std::min(2 * pause_, kLongestPause) : 1;
  until_next_try_ = pause_;
  tell(!failed.empty());
  std::erase_if(failed, [](const LogRecord& record) { return record.kind == "progress"; });
  for (const LogRecord& record : failed) bytes_ += bytes_of(record);
  waiting_.insert(waiting_.begin(), std::make_move_iterator(failed.begin()), std::make_move_iterator(failed.end()));
}

// That the place begins or ceases to fail, and what was lost.
void AsyncSink::Place::tell(bool fails) {
  const bool failed = std::exchange(fails_, fails);
  if (fails && !failed)
    log_error("[LoggerHook] one place takes no lines at the moment, training goes on and they are kept: " + why_);
  if (fails) return;
  const std::string lost = told_lost();
  if (failed) log_info(std::string("[LoggerHook] lines are written again") + (lost.empty() ? ", none is lost" : ""));
  if (lost.empty()) return;
  log_warning("[LoggerHook] lost records: " + lost + ": " +
              (why_.empty() ? "lines came faster than they could be written" : std::exchange(why_, {})));
}

void AsyncSink::Place::flush(Lock& lock) {
  try_waiting(lock);
  if (fails_ || goes_through(lock, [this] { sink_->flush(); })) return;
  log_error("[LoggerHook] lines may be missing in one place: " + std::exchange(why_, {}));
}

void AsyncSink::Place::finish(Lock& lock) {
  flush(lock);
  if (!std::exchange(fails_, false)) return;
  while (!waiting_.empty()) lose(take());
  const std::string lost = told_lost();
  if (!lost.empty()) log_error("[LoggerHook] lost records, which one place could not take: " + lost + ": " + why_);
}

struct AsyncSink::Shared {
  void run();
  // The thread, if there is one or can be one.
  bool has_thread(const std::shared_ptr<Shared>& self);
  int64_t calls() const {
    int64_t count = 0;
    for (const Place& place : places) count += place.calls();
    return count;
  }

  std::mutex mutex;  // guards what follows
  std::vector<Place> places;
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
    (sink->keeps_log_order() ? in_log_order_ : shared_->places).emplace_back(std::move(sink));
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
  std::unique_lock order(order_mutex_);
  for (Place& place : in_log_order_) {
    place.put(record);
    place.write(order);
  }
  if (!is_mine() || shared_->places.empty()) return;
  std::unique_lock lock(shared_->mutex);
  if (shared_->left_behind) return;  // lost, as close() has said
  for (Place& place : shared_->places) place.put(record);
  if (shared_->has_thread(shared_)) {
    shared_->has_work = true;
    shared_->changed.notify_all();
  } else {
    for (Place& place : shared_->places) place.write(lock);
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
  std::unique_lock order(order_mutex_);
  for (Place& place : in_log_order_) place.flush(order);
  if (!is_mine()) return;
  Shared& shared = *shared_;
  std::unique_lock lock(shared.mutex);
  if (shared.left_behind) return;
  if (!shared.thread.joinable()) {
    for (Place& place : shared.places) place.flush(lock);
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
    const bool flushes = flushing, ends = closing;
    has_work = false;
    for (Place& place : places) {
      if (ends) {
        place.finish(lock);
      } else {
        flushes ? place.flush(lock) : place.write(lock);
      }
    }
    if (flushes) flushing = false;
    ended = ends;
    changed.notify_all();
  }
}

}  // namespace duet
