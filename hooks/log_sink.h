#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>
#include <ATen/core/Tensor.h>

namespace duet {

using LogValue = std::variant<int64_t, double, std::string>;

struct LogImage {
  std::string name;   // "val/0007"
  at::Tensor pixels;  // uint8 [height, width, 3], RGB, on the CPU
};

// One thing that is worth a line: what LoggerHook hands to every sink.
struct LogRecord {
  std::string kind;      // train, val, test, start, stop, error, text, image, progress
  int64_t step = 0;      // the horizontal axis: finished steps, or epochs for evaluations logged by epoch
  double wall_time = 0;  // seconds since 1970
  std::vector<std::pair<std::string, LogValue>> values{};  // in the order to show; numbers are what a chart draws
  std::string line{};                                      // the same for people; empty: not for the terminal
  std::vector<LogImage> images{};
};

// Whether the first record of a sink tells of a training that goes on after some steps: a start, or a text before it.
inline bool goes_on(const LogRecord& first) {
  return first.step > 0 && (first.kind == "start" || first.kind == "text");
}

// Somewhere that records go. Called from one thread: the training thread if it keeps_log_order(), else another.
class LogSink {
 public:
  virtual ~LogSink() = default;
  // Throws std::exception if the record cannot be written; the sink is then given up with one error in the log.
  virtual void write(const LogRecord& record) = 0;
  // Brings everything written so far to the file.
  virtual void flush() {}

  // Whether pictures are worth making for it.
  virtual bool takes_images() const { return true; }
  // Whether records of kind "progress" reach it: a line that the next one takes the place of.
  virtual bool shows_progress() const { return false; }
  // Whether its lines stand among others of the log: the training thread writes them, in the order of what happens.
  virtual bool keeps_log_order() const { return false; }
};

}  // namespace duet
