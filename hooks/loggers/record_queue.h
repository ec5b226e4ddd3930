#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include "hooks/logger_hook.h"

namespace duet {

// Records that were not written: how many, and the steps they are of.
struct LostRecords {
  int64_t count = 0;
  int64_t first_step = 0, last_step = 0;

  void add(const LogRecord& record);
  // "3 records (steps 10 to 30)".
  std::string text() const;
};

// Records that wait, in their order, in at most kMaxBytes or alone: what comes when it is full is lost.
class RecordQueue {
 public:
  static constexpr uint64_t kMaxBytes = uint64_t{64} << 20;

  // false: there is no room, and the record is as it was.
  bool push(LogRecord&& record);
  LogRecord pop();
  // What pop() gave.
  void put_back(LogRecord record);
  const LogRecord& front() const { return records_.front(); }
  bool empty() const { return records_.empty(); }
  std::size_t size() const { return records_.size(); }

 private:
  std::deque<LogRecord> records_;
  uint64_t bytes_ = 0;
};

}  // namespace duet
