#include "hooks/loggers/jsonl_sink.h"
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <system_error>
#include <utility>
#include <c10/util/StringUtil.h>
#include <nlohmann/json.hpp>
#include "base/error.h"

namespace duet {

namespace {

using Json = nlohmann::ordered_json;

// JSON has no NaN and no infinities.
Json json_number(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

Json json_of(const LogValue& value) {
  if (const auto* number = std::get_if<double>(&value)) return json_number(*number);
  if (const auto* count = std::get_if<int64_t>(&value)) return *count;
  return std::get<std::string>(value);
}

std::string iso_time(double seconds) {
  const auto milliseconds = static_cast<int64_t>(std::llround(seconds * 1e3));
  const auto whole = static_cast<std::time_t>(milliseconds / 1000);
  std::tm utc{};
  gmtime_r(&whole, &utc);
  char date[32], text[48];
  std::strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%S", &utc);
  std::snprintf(text, sizeof(text), "%s.%03dZ", date, static_cast<int>(milliseconds % 1000));
  return text;
}

// A run that was killed may have left half a line.
bool ends_in_half_a_line(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file || file.tellg() <= 0) return false;
  file.seekg(-1, std::ios::end);
  return file.get() != '\n';
}

}  // namespace

JsonlSink::JsonlSink(const std::string& file, std::string run_id) : path_(file), run_id_(std::move(run_id)) {
  const std::filesystem::path folder = std::filesystem::path(path_).parent_path();
  std::error_code failed;
  if (!folder.empty()) std::filesystem::create_directories(folder, failed);
  const bool half_a_line = ends_in_half_a_line(path_);
  errno = 0;
  file_.open(path_, std::ios::app);
  if (!file_) {
    throw ConfigError(c10::str("[JsonlSink] found log file '", path_, "' that cannot be written (",
                               failed ? failed.message() : std::strerror(errno),
                               "), expected a writable place; change work_dir or the file of the logger"));
  }
  if (half_a_line) file_ << '\n';
}

void JsonlSink::write(const LogRecord& record) {
  Json line = {{"kind", record.kind}};
  for (const auto& [name, value] : record.values) line[name] = json_of(value);
  line["step"] = record.step;
  line["wall_time"] = iso_time(record.wall_time);
  if (!run_id_.empty()) line["run_id"] = run_id_;
  file_ << line.dump(-1, ' ', false, Json::error_handler_t::replace) << '\n' << std::flush;
  if (!file_) {
    throw Error("[JsonlSink] '" + path_ + "' cannot be written any more (is the disk full?); its lines end here", 1);
  }
}

}  // namespace duet
