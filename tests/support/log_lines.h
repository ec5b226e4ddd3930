#pragma once

#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include "hooks/logger_hook.h"

namespace duet::testing {

using Json = nlohmann::json;

// The objects of a file of JSON lines.
inline std::vector<Json> lines_of(const std::string& path) {
  std::vector<Json> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) lines.push_back(Json::parse(line));
  return lines;
}

inline std::vector<Json> kind_of(const std::vector<Json>& lines, const std::string& kind) {
  std::vector<Json> found;
  for (const Json& line : lines) {
    if (line.at("kind") == kind) found.push_back(line);
  }
  return found;
}

// Without what differs from run to run: times, memory, the run's name.
inline Json lasting(Json line) {
  for (const char* key :
       {"time", "data_time", "epoch_time", "samples_per_second", "memory", "eta", "wall_time", "run_id", "seconds"}) {
    line.erase(key);
  }
  return line;
}

// Everything that `body` writes to stderr.
inline std::string stderr_of(const std::function<void()>& body) {
  ::testing::internal::CaptureStderr();
  try {
    body();
  } catch (...) {
    ::testing::internal::GetCapturedStderr();  // or nobody could capture any more
    throw;
  }
  return ::testing::internal::GetCapturedStderr();
}

// Keeps what it gets where the test sees it. Look at it after a flush().
class MemorySink : public LogSink {
 public:
  explicit MemorySink(std::shared_ptr<std::vector<LogRecord>> records) : records_(std::move(records)) {}
  void write(const LogRecord& record) override { records_->push_back(record); }

 private:
  std::shared_ptr<std::vector<LogRecord>> records_;
};

}  // namespace duet::testing
