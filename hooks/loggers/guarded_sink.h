#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>
#include "hooks/logger_hook.h"

namespace duet {

// A sink and the records that wait for it, in at most kMaxBytes of memory or alone. Its exceptions end in the log: what
// it cannot take is tried again with what comes later, and the log says what was lost in the end. A record that fails
// where one after it can be written is lost alone.
class GuardedSink {
 public:
  static constexpr uint64_t kMaxBytes = uint64_t{64} << 20;

  explicit GuardedSink(std::unique_ptr<LogSink> sink) : sink_(std::move(sink)) {}

  // Waits for no write; from any thread. The others are called by one thread at a time.
  void put(LogRecord record);
  // Writes what waits; seldom tried where the sink fails.
  void write_waiting();
  void flush();
  // No more records will come.
  void finish();

  // Calls of the sink that have come back.
  int64_t calls() const { return calls_; }

 private:
  // Whether `call` went through; else why_ says why not.
  template <class Call>
  bool goes_through(const Call& call);
  std::optional<LogRecord> take();
  void put_back(std::vector<LogRecord> records);
  void lose(const LogRecord& record);
  void try_waiting();
  std::string told_lost();

  std::unique_ptr<LogSink> sink_;
  std::string why_;
  bool failing_ = false;
  int64_t until_next_try_ = 0, pause_ = 1;  // in calls of write_waiting(): trying costs time, where a disk stays full
  std::atomic<int64_t> calls_{0};

  std::mutex mutex_;  // guards what follows
  std::deque<LogRecord> waiting_;
  uint64_t bytes_ = 0;
  int64_t lost_ = 0, first_lost_ = 0, last_lost_ = 0;  // how many records, and the steps they are of
};

}  // namespace duet
