#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>
#include "hooks/loggers/protobuf_writer.h"
#include "io/file_io.h"

namespace duet {

struct EventTime {
  int64_t step = 0;
  double wall_time = 0;  // seconds since 1970
};

// A new TensorBoard event file. What a call wrote is in the file when it returns; Error if it cannot be.
class EventFile {
 public:
  // Named so that TensorBoard, which reads a folder's files in the order of their names, reads it after those there.
  explicit EventFile(const std::string& folder);

  // The run begins at this step: TensorBoard forgets what earlier files of the folder say from it on.
  void session_start(const EventTime& time);
  // One event with values that the functions below encode.
  void summary(const EventTime& time, const std::vector<std::string>& values);

  const std::string& path() const { return path_; }

 private:
  void append(const std::string& event);

  std::string path_;
  file_io::FileWriter file_;
};

std::string scalar_value(const std::string& tag, float value);
std::string text_value(const std::string& tag, const std::string& text);
std::string image_value(const std::string& tag, int64_t height, int64_t width, std::string_view png);

}  // namespace duet
