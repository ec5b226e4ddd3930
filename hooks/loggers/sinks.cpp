#include "hooks/loggers/sinks.h"
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>
#include <c10/util/StringUtil.h>
#include <nlohmann/json.hpp>
#include <unistd.h>
#include "base/error.h"
#include "base/log.h"
#include "hooks/detail/shared.h"

namespace duet {

namespace {

using Json = nlohmann::ordered_json;

class TerminalSink : public LogSink {
 public:
  explicit TerminalSink(bool progress) : progress_(progress && isatty(STDERR_FILENO) != 0) {}
  ~TerminalSink() override { clear(); }

  void write(const LogRecord& record) override {
    if (record.line.empty()) return;
    if (record.kind == "progress") return draw(record.line);
    clear();
    log_info(record.line);
  }
  bool takes_images() const override { return false; }
  bool shows_progress() const override { return progress_; }
  bool keeps_log_order() const override { return true; }

 private:
  void draw(std::string text) {
    text.resize(std::min<std::size_t>(text.size(), 79));
    const std::size_t width = text.size();
    if (width < drawn_width_) text.append(drawn_width_ - width, ' ');
    // The cursor goes back to the start of the line, so that whoever logs next writes over the progress.
    std::fprintf(stderr, "%s\r", text.c_str());
    drawn_width_ = width;
  }
  void clear() {
    if (drawn_width_ > 0) std::fprintf(stderr, "%*s\r", static_cast<int>(drawn_width_), "");
    drawn_width_ = 0;
  }

  bool progress_;
  std::size_t drawn_width_ = 0;
};

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

class JsonlSink : public LogSink {
 public:
  JsonlSink(std::string file, std::string run_id) : path_(std::move(file)), run_id_(std::move(run_id)) {
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

  // Error if the file cannot be written: a full disk.
  void write(const LogRecord& record) override {
    Json line = {{"kind", record.kind}};
    for (const auto& [name, value] : record.values) line[name] = json_of(value);
    line["step"] = record.step;
    line["wall_time"] = iso_time(record.wall_time);
    if (!run_id_.empty()) line["run_id"] = run_id_;
    file_ << json_text(line) << '\n' << std::flush;
    if (!file_) {
      throw Error("[JsonlSink] '" + path_ + "' cannot be written any more (is the disk full?); its lines end here", 1);
    }
  }
  bool takes_images() const override { return false; }

 private:
  std::string path_;
  std::string run_id_;
  std::ofstream file_;
};

std::string place(const std::string& wanted, const std::string& work_dir, const std::string& name) {
  if (!wanted.empty()) return wanted;
  return work_dir.empty() ? "" : work_dir + "/" + name;
}

}  // namespace

std::unique_ptr<LogSink> terminal_sink(bool progress) { return std::make_unique<TerminalSink>(progress); }

std::unique_ptr<LogSink> jsonl_sink(const std::string& file, const std::string& run_id) {
  return std::make_unique<JsonlSink>(file, run_id);
}

std::unique_ptr<LogSink> make_sink(const LogSinkOptions& options, const LoggerHookOptions& logger,
                                   const std::string& work_dir, const std::string& run_id) {
  if (options.type == "terminal") return terminal_sink(logger.progress);
  if (options.type == "jsonl") {
    const std::string file = place(options.file.empty() ? logger.file : options.file, work_dir, "log.jsonl");
    return file.empty() ? nullptr : jsonl_sink(file, run_id);
  }
  LogSinkOptions placed = options;
  placed.folder = place(options.folder, work_dir, options.type);
  if (placed.folder.empty()) return nullptr;
  if (options.type == "tensorboard") return tensorboard_sink(placed.folder);
  if (placed.id.empty()) placed.id = run_id;
  return wandb_sink(std::move(placed), logger.config);
}

}  // namespace duet
