#include "hooks/loggers/record_queue.h"
#include <algorithm>
#include <utility>
#include <c10/util/StringUtil.h>

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

void LostRecords::add(const LogRecord& record) {
  first_step = count == 0 ? record.step : std::min(first_step, record.step);
  last_step = count == 0 ? record.step : std::max(last_step, record.step);
  ++count;
}

std::string LostRecords::text() const {
  return c10::str(count, count == 1 ? " record" : " records",
                  first_step == last_step ? c10::str(" (step ", first_step, ")")
                                          : c10::str(" (steps ", first_step, " to ", last_step, ")"));
}

bool RecordQueue::push(LogRecord&& record) {
  const uint64_t bytes = bytes_of(record);
  if (bytes_ + bytes > kMaxBytes && !records_.empty()) return false;
  bytes_ += bytes;
  records_.push_back(std::move(record));
  return true;
}

LogRecord RecordQueue::pop() {
  LogRecord record = std::move(records_.front());
  records_.pop_front();
  bytes_ -= bytes_of(record);
  return record;
}

void RecordQueue::put_back(LogRecord record) {
  bytes_ += bytes_of(record);
  records_.push_front(std::move(record));
}

}  // namespace duet
