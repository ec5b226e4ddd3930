#include "hooks/loggers/event_file.h"
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <unistd.h>
#include "base/error.h"
#include "hooks/loggers/crc32c.h"

namespace duet {

namespace {

// Fields and constants of tensorboard/compat/proto/*.proto.
namespace event {
enum { kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5, kSessionLog = 7 };
}
namespace session_log {
enum { kStatus = 1, kStart = 1 };
}
namespace summary_value {
enum { kTag = 1, kSimpleValue = 2, kImage = 4, kTensor = 8, kMetadata = 9 };
}
namespace image {
enum { kHeight = 1, kWidth = 2, kColorspace = 3, kEncoded = 4, kRgb = 3 };
}
namespace tensor {
enum { kDtype = 1, kShape = 2, kStringValue = 8, kString = 7 };
}
namespace metadata {
enum { kPluginData = 1, kPluginName = 1, kDataClass = 4, kTensorData = 2 };
}

constexpr const char* kPrefix = "events.out.tfevents.";

std::string little_endian(uint64_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text.push_back(static_cast<char>(value >> (8 * i)));
  return text;
}

// A sum of bytes that hold sums would be weak: the format turns each by 15 bits and adds a constant.
std::string masked_sum(std::string_view bytes) {
  const uint32_t sum = crc32c(bytes);
  return little_endian((sum >> 15 | sum << 17) + 0xa282ead8U, 4);
}

// The time in an event file's name, or 0 for other files.
long long time_in(const std::filesystem::path& path) {
  long long seconds = 0;
  return std::sscanf(path.filename().c_str(), "events.out.tfevents.%10lld.", &seconds) == 1 ? seconds : 0;
}

std::string next_path(const std::string& folder) {
  static std::atomic<int> files{0};
  long long seconds = std::time(nullptr);
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    seconds = std::max(seconds, time_in(entry.path()) + 1);
  }
  std::array<char, 256> host{};
  if (gethostname(host.data(), host.size() - 1) != 0 || host[0] == '\0') host = {"unknown"};
  std::array<char, 16> time{};
  std::snprintf(time.data(), time.size(), "%010lld", seconds);
  return folder + "/" + kPrefix + time.data() + "." + host.data() + "." + std::to_string(getpid()) + "." +
         std::to_string(files++);
}

file_io::FileWriter create(const std::string& path) try {
  return file_io::FileWriter(path, 0);
} catch (const file_io::IoError& error) {
  throw Error(std::string("[TensorBoardSink] ") + error.what() + "; choose another work_dir or leave the sink out", 1);
}

ProtobufWriter event_at(const EventTime& time) {
  ProtobufWriter writer;
  writer.float64(event::kWallTime, time.wall_time).integer(event::kStep, time.step);
  return writer;
}

}  // namespace

EventFile::EventFile(const std::string& folder) : path_(next_path(folder)), file_(create(path_)) {
  append(ProtobufWriter()
             .float64(event::kWallTime, static_cast<double>(std::time(nullptr)))
             .text(event::kFileVersion, "brain.Event:2")
             .data());
}

void EventFile::session_start(const EventTime& time) {
  const ProtobufWriter start = ProtobufWriter().integer(session_log::kStatus, session_log::kStart);
  append(event_at(time).message(event::kSessionLog, start).data());
}

void EventFile::summary(const EventTime& time, const std::vector<std::string>& values) {
  ProtobufWriter summary;
  for (const std::string& value : values) summary.bytes(1, value);
  append(event_at(time).message(event::kSummary, summary).data());
}

void EventFile::append(const std::string& event) try {
  const std::string length = little_endian(event.size(), 8);
  const std::string record = length + masked_sum(length) + event + masked_sum(event);
  file_.write(record.data(), record.size());
} catch (const file_io::IoError& error) {
  throw Error(std::string("[TensorBoardSink] ") + error.what() + "; make room or leave the sink out", 1);
}

std::string scalar_value(const std::string& tag, float value) {
  return ProtobufWriter().text(summary_value::kTag, tag).float32(summary_value::kSimpleValue, value).data();
}

// A tensor without dimensions: the text plugin shows it as Markdown, and one with them as a table.
std::string text_value(const std::string& tag, const std::string& text) {
  ProtobufWriter string;
  string.integer(tensor::kDtype, tensor::kString).message(tensor::kShape, {}).text(tensor::kStringValue, text);
  ProtobufWriter plugin;
  plugin.message(metadata::kPluginData, ProtobufWriter().text(metadata::kPluginName, "text"))
      .integer(metadata::kDataClass, metadata::kTensorData);
  return ProtobufWriter()
      .text(summary_value::kTag, tag)
      .message(summary_value::kTensor, string)
      .message(summary_value::kMetadata, plugin)
      .data();
}

std::string image_value(const std::string& tag, int64_t height, int64_t width, std::string_view png) {
  ProtobufWriter picture;
  picture.integer(image::kHeight, height).integer(image::kWidth, width).integer(image::kColorspace, image::kRgb);
  picture.bytes(image::kEncoded, png);
  return ProtobufWriter().text(summary_value::kTag, tag).message(summary_value::kImage, picture).data();
}

}  // namespace duet
