#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>
#include "hooks/logger_hook.h"

namespace duet {

// Hands records to sinks in order, each on a thread of its own; to those that keep the log's order at once. What a sink
// throws ends in the log: the record is tried again with the next ones, and the log says what was lost in the end. One
// that fails where one after it can be written is lost alone. What waits for a sink takes at most kMaxBytes, or is one
// record, so that a disk that hangs costs lines and no memory. The destructor and exit() wait until all is written, and
// leave a thread behind if for `patience` nothing is. A process that was forked leaves threads and their sinks to its
// parent.
class AsyncSink {
 public:
  static constexpr uint64_t kMaxBytes = uint64_t{64} << 20;

  explicit AsyncSink(std::vector<std::unique_ptr<LogSink>> sinks,
                     std::chrono::milliseconds patience = std::chrono::seconds(10));
  ~AsyncSink();

  // From one thread. Waits for no sink but those that keep the log's order, and never throws what one throws.
  void put(const LogRecord& record);
  // Waits until every record so far is written and flushed, or nothing was for `patience`.
  void flush();
  // Writes what is left and ends the threads; later records are written by who puts them, or lost if a sink hangs.
  void close();

  bool takes_images() const { return takes_images_; }
  bool shows_progress() const { return shows_progress_; }

 private:
  class Queue;

  std::vector<std::shared_ptr<Queue>> queues_;
  bool takes_images_ = false;
  bool shows_progress_ = false;
};

}  // namespace duet
