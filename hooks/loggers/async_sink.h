#pragma once

#include <memory>
#include <vector>
#include "hooks/log_sink.h"

namespace duet {

// Hands records to other sinks on a thread of its own, in order; to those that keep the log's order at once. Nothing is
// ever dropped: what waits is bounded by memory alone. A sink that throws is given up with one error in the log; the
// others go on. The destructor and exit() wait until all is written. A process that forks gets a thread of its own with
// its first record.
class AsyncSink : public LogSink {
 public:
  explicit AsyncSink(std::vector<std::unique_ptr<LogSink>> sinks);
  ~AsyncSink() override;
  AsyncSink(const AsyncSink&) = delete;
  AsyncSink& operator=(const AsyncSink&) = delete;

  // From one thread. Waits for no sink but those that keep the log's order, and never throws what one throws.
  void write(const LogRecord& record) override { put(record); }
  void put(LogRecord record);
  // Waits until every record so far is written and flushed.
  void flush() override;

  bool takes_images() const override { return takes_images_; }
  bool shows_progress() const override { return shows_progress_; }

 private:
  class GuardedSink;
  class Worker;

  std::vector<GuardedSink> in_log_order_;
  std::unique_ptr<Worker> worker_;
  bool takes_images_ = false;
  bool shows_progress_ = false;
};

}  // namespace duet
