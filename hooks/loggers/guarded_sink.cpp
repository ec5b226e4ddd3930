#include "hooks/loggers/guarded_sink.h"
#include <algorithm>
#include <exception>
#include <utility>
#include <vector>
#include "base/log.h"

namespace duet {

namespace {

constexpr int64_t kLongestPause = 64;

}  // namespace

bool GuardedSink::takes(const LogRecord& record) const {
  if (!record.images.empty() && !sink_->takes_images()) return false;
  return record.kind != "progress" || sink_->shows_progress();
}

template <class Call>
bool GuardedSink::goes_through(const Call& call) {
  try {
    call();
    return true;
  } catch (const std::exception& error) {
    why_ = error.what();
  } catch (...) {
    why_ = "unknown error";
  }
  return false;
}

void GuardedSink::write(const LogRecord& record) {
  if (!takes(record)) return;
  if (!failing_ && goes_through([&] { sink_->write(record); })) return;
  if (!failing_) {
    failing_ = true;
    pause_ = until_next_try_ = 1;
    log_error("[LoggerHook] one place takes no lines at the moment, training goes on and they are kept: " + why_);
    keep(record);
    return;
  }
  keep(record);
  if (--until_next_try_ <= 0) write_waiting();
}

void GuardedSink::keep(const LogRecord& record) {
  if (record.kind == "progress") return;
  if (!waiting_.push(LogRecord(record))) lost_.add(record);
}

// Those that fail before one that can be written are lost; where none of several can be, the place is full.
void GuardedSink::write_waiting() {
  constexpr std::size_t kTries = 8;
  std::vector<LogRecord> failed;
  while (!waiting_.empty() && failed.size() < kTries) {
    LogRecord record = waiting_.pop();
    if (!goes_through([&] { sink_->write(record); })) {
      failed.push_back(std::move(record));
      continue;
    }
    for (const LogRecord& unwritten : failed) lost_.add(unwritten);
    failed.clear();
  }
  for (; !failed.empty(); failed.pop_back()) waiting_.put_back(std::move(failed.back()));
  if (waiting_.empty()) return recover();
  pause_ = std::min(2 * pause_, kLongestPause);
  until_next_try_ = pause_;
}

void GuardedSink::recover() {
  failing_ = false;
  if (lost_.count > 0) {
    log_warning("[LoggerHook] lines are written again; lost are " + lost_.text() + ": " + why_);
  } else {
    log_info("[LoggerHook] lines are written again, none is lost");
  }
  lost_ = {};
}

void GuardedSink::flush() {
  if (failing_) write_waiting();
  if (failing_ || goes_through([&] { sink_->flush(); })) return;
  log_error("[LoggerHook] lines may be missing in one place: " + why_);
}

void GuardedSink::finish() {
  flush();
  if (!failing_) return;
  while (!waiting_.empty()) lost_.add(waiting_.pop());
  log_error("[LoggerHook] " + lost_.text() + " could not be written in one place and are lost: " + why_);
  lost_ = {};
}

}  // namespace duet
