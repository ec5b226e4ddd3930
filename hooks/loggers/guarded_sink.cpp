#include "hooks/loggers/guarded_sink.h"
#include <algorithm>
#include <exception>
#include <iterator>
#include <c10/util/StringUtil.h>
#include "base/log.h"

namespace duet {

namespace {

constexpr int64_t kLongestPause = 64;

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

void GuardedSink::put(LogRecord record) {
  if (!record.images.empty() && !sink_->takes_images()) return;
  if (record.kind == "progress" && !sink_->shows_progress()) return;
  const uint64_t bytes = bytes_of(record);
  const std::lock_guard lock(mutex_);
  if (bytes_ + bytes > kMaxBytes && !waiting_.empty()) return lose(record);
  bytes_ += bytes;
  waiting_.push_back(std::move(record));
}

std::optional<LogRecord> GuardedSink::take() {
  const std::lock_guard lock(mutex_);
  if (waiting_.empty()) return std::nullopt;
  LogRecord record = std::move(waiting_.front());
  waiting_.pop_front();
  bytes_ -= bytes_of(record);
  return record;
}

void GuardedSink::put_back(std::vector<LogRecord> records) {
  std::erase_if(records, [](const LogRecord& record) { return record.kind == "progress"; });
  const std::lock_guard lock(mutex_);
  for (const LogRecord& record : records) bytes_ += bytes_of(record);
  waiting_.insert(waiting_.begin(), std::make_move_iterator(records.begin()), std::make_move_iterator(records.end()));
}

void GuardedSink::lose(const LogRecord& record) {
  first_lost_ = lost_ == 0 ? record.step : std::min(first_lost_, record.step);
  last_lost_ = lost_ == 0 ? record.step : std::max(last_lost_, record.step);
  ++lost_;
}

// "3 records (steps 10 to 30)"; empty: none, or told before.
std::string GuardedSink::told_lost() {
  const std::lock_guard lock(mutex_);
  const int64_t count = std::exchange(lost_, 0);
  if (count == 0) return {};
  return c10::str(count, count == 1 ? " record" : " records",
                  first_lost_ == last_lost_ ? c10::str(" (step ", first_lost_, ")")
                                            : c10::str(" (steps ", first_lost_, " to ", last_lost_, ")"));
}

template <class Call>
bool GuardedSink::goes_through(const Call& call) {
  bool done = false;
  try {
    call();
    done = true;
  } catch (const std::exception& error) {
    why_ = error.what();
  } catch (...) {
    why_ = "unknown error";
  }
  ++calls_;
  return done;
}

void GuardedSink::write_waiting() {
  if (!failing_ || --until_next_try_ <= 0) try_waiting();
}

// Those that fail before one that can be written are lost; where none of several can be, the place is full.
void GuardedSink::try_waiting() {
  constexpr std::size_t kTries = 8;
  std::vector<LogRecord> failed;
  while (failed.size() < kTries) {
    std::optional<LogRecord> record = take();
    if (!record) break;
    if (!goes_through([&] { sink_->write(*record); })) {
      failed.push_back(std::move(*record));
      continue;
    }
    const std::lock_guard lock(mutex_);
    for (const LogRecord& unwritten : failed) lose(unwritten);
    failed.clear();
  }
  if (!failed.empty()) {
    if (!failing_) {
      log_error("[LoggerHook] one place takes no lines at the moment, training goes on and they are kept: " + why_);
    }
    pause_ = failing_ ? std::min(2 * pause_, kLongestPause) : 1;
    until_next_try_ = pause_;
    failing_ = true;
    return put_back(std::move(failed));
  }
  const std::string lost = told_lost();
  if (std::exchange(failing_, false)) {
    log_info(std::string("[LoggerHook] lines are written again") + (lost.empty() ? ", none is lost" : ""));
  }
  if (lost.empty()) return;
  log_warning("[LoggerHook] lost are " + lost + ": " +
              (why_.empty() ? "lines came faster than they could be written" : std::exchange(why_, {})));
}

void GuardedSink::flush() {
  try_waiting();
  if (failing_ || goes_through([&] { sink_->flush(); })) return;
  log_error("[LoggerHook] lines may be missing in one place: " + std::exchange(why_, {}));
}

void GuardedSink::finish() {
  flush();
  if (!std::exchange(failing_, false)) return;
  while (const auto record = take()) {
    const std::lock_guard lock(mutex_);
    lose(*record);
  }
  const std::string lost = told_lost();
  if (!lost.empty()) log_error("[LoggerHook] " + lost + " could not be written in one place and are lost: " + why_);
}

}  // namespace duet
