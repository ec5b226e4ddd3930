#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include "hooks/logger_hook.h"
#include "hooks/loggers/record_queue.h"

namespace duet {

// A sink whose exceptions end in the log. What it cannot take waits, and is tried again with what comes later; the log
// says what was lost in the end. A record that fails where the one after it can be written is lost alone.
class GuardedSink {
 public:
  explicit GuardedSink(std::unique_ptr<LogSink> sink) : sink_(std::move(sink)) {}

  void write(const LogRecord& record);
  void flush();
  // No more records will come.
  void finish();

 private:
  bool takes(const LogRecord& record) const;
  // Whether `call` went through; else why_ says why not.
  template <class Call>
  bool goes_through(const Call& call);
  void keep(const LogRecord& record);
  void write_waiting();
  void recover();

  std::unique_ptr<LogSink> sink_;
  RecordQueue waiting_;
  LostRecords lost_;
  bool failing_ = false;
  std::string why_;
  // In records: trying costs time, where a disk stays full.
  int64_t until_next_try_ = 0, pause_ = 1;
};

}  // namespace duet
