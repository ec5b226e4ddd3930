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
#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <unistd.h>
#include "base/error.h"
#include "base/log.h"
#include "hooks/detail/shared.h"
#include "io/bounded_json.h"

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

// Of a file that is there before the run.
struct Tail {
  int64_t last_step = 0;      // of training that its lines tell of; 0: of none
  bool is_cut_short = false;  // a run that was killed has left half a line
};

Tail tail_of(const std::string& path) {
  constexpr std::streamoff kBytes = 1 << 20;
  Tail tail;
  std::error_code failed;
  const auto size = static_cast<std::streamoff>(std::filesystem::file_size(path, failed));
  if (failed) return tail;  // there is none yet, or no regular file
  std::ifstream file(path);
  std::string line;
  if (size > kBytes && file.seekg(size - kBytes)) std::getline(file, line);  // not whole
  while (std::getline(file, line)) {
    tail.is_cut_short = file.eof();
    const auto record = parse_json_or_discard<Json>(line);
    if (!record.is_object()) continue;
    const Json kind = record.value("kind", Json());
    const auto step = record.find("step");
    if ((kind == "train" || kind == "void") && step != record.end() && step->is_number_integer())
      tail.last_step = *step;
  }
  return tail;
}

class JsonlSink : public LogSink {
 public:
  JsonlSink(std::string file, std::string run_id) : path_(std::move(file)), run_id_(std::move(run_id)) {
    const std::filesystem::path folder = std::filesystem::path(path_).parent_path();
    std::error_code failed;
    if (!folder.empty()) std::filesystem::create_directories(folder, failed);
    const Tail tail = tail_of(path_);
    last_step_ = tail.last_step;
    open();
    if (!file_.is_open()) {
      throw ConfigError(c10::str("[JsonlSink] found log file '", path_, "' that cannot be written (",
                                 failed ? failed.message() : std::strerror(errno),
                                 "), expected a writable place; change work_dir or the file of the logger"));
    }
    if (tail.is_cut_short) file_ << '\n';
  }

  // Error if the file cannot be written: a full disk.
  void write(const LogRecord& record) override {
    if (is_first_ && goes_on(record) && record.step < last_step_) {
      append(
          {.kind = "void", .step = record.step, .wall_time = record.wall_time, .values = {{"last_step", last_step_}}});
    }
    is_first_ = false;
    append(record);
  }
  bool takes_images() const override { return false; }

 private:
  // A pipe that nobody reads would make the open below wait, through all signals.
  void open() {
    const int pipe = ::open(path_.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC);
    const bool unread = pipe < 0 && errno == ENXIO;
    if (!unread) file_.open(path_, std::ios::app);
    if (pipe >= 0) ::close(pipe);
  }

  // The whole line, or none of it.
  void append(const LogRecord& record) {
    Json line = {{"kind", record.kind}};
    for (const auto& [name, value] : record.values) line[name] = json_of(value);
    for (const auto& [name, made] : record.histograms) line[name] = {{"counts", made.counts}, {"edges", made.edges}};
    line["step"] = record.step;
    line["wall_time"] = iso_time(record.wall_time);
    if (!run_id_.empty()) line["run_id"] = run_id_;
    std::error_code ignored;
    if (!file_.is_open()) open();
    const auto size = std::filesystem::file_size(path_, ignored);
    file_ << json_text(line) << '\n' << std::flush;
    if (file_) return;
    const int error = errno;
    file_.close();
    file_.clear();
    if (!ignored) std::filesystem::resize_file(path_, size, ignored);
    throw Error(c10::str("[JsonlSink] '", path_, "' cannot be written (", std::strerror(error), ")"), 1);
  }

  std::string path_;
  std::string run_id_;
  std::ofstream file_;
  int64_t last_step_ = 0;  // that the file tells of training before this run
  bool is_first_ = true;
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
