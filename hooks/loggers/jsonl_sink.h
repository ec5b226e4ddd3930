#pragma once

#include <fstream>
#include <string>
#include "hooks/log_sink.h"

namespace duet {

// Records as one JSON object per line, appended to a file: kind, the values, step, wall_time (ISO 8601, UTC) and, if
// there is one, run_id. NaN and infinities are the strings "nan", "inf" and "-inf".
class JsonlSink : public LogSink {
 public:
  // Creates the file and its folder; ConfigError if that fails. A file that ends in half a line, after a crash, goes on
  // with a new one.
  explicit JsonlSink(const std::string& file, std::string run_id = "");

  // Error if the file cannot be written: a full disk.
  void write(const LogRecord& record) override;
  bool takes_images() const override { return false; }

 private:
  std::string path_;
  std::string run_id_;
  std::ofstream file_;
};

}  // namespace duet
