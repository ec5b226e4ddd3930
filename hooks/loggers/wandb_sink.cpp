#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <map>
#include <memory>
#include <utility>
#include <nlohmann/json.hpp>
#include <zlib.h>
#include "base/detail/text.h"
#include "base/error.h"
#include "base/log.h"
#include "hooks/detail/shared.h"
#include "hooks/loggers/encoding.h"
#include "hooks/loggers/sinks.h"
#include "io/file_io.h"
#include "io/read_file.h"

namespace duet {

namespace {

using Json = nlohmann::ordered_json;
using Items = std::map<std::string, std::string>;  // value as JSON by name

constexpr const char* kWandb = "WandbSink";

// wandb's Record messages in LevelDB's log format (blocks of 32 KiB, each piece with its sum), after a header of
// wandb's own.
class WandbFile {
 public:
  explicit WandbFile(const std::string& path) : file_(path, 0) { write(std::string(":W&B\xe1\xbe\0", 7)); }

  // A Record whose field `kind` is `message`.
  void append(int kind, const ProtobufWriter& message) {
    constexpr int kNumber = 1;
    write(framed(ProtobufWriter().integer(kNumber, records_ + 1).message(kind, message).data()));
    ++records_;
  }

 private:
  static constexpr uint64_t kBlock = 32768;
  static constexpr uint64_t kPieceHeader = 7;  // sum, length, place in the record

  enum Place : uint8_t { kWhole = 1, kFirst = 2, kMiddle = 3, kLast = 4 };

  void write(const std::string& bytes) {
    write_file(kWandb, [&] { file_.write(bytes.data(), bytes.size()); });
    size_ += bytes.size();
  }

  static std::string piece(Place place, std::string_view data) {
    const Bytef kind = place;
    const auto* bytes = reinterpret_cast<const Bytef*>(data.data());
    const uint64_t sum = crc32_z(crc32(0, &kind, 1), bytes, data.size());
    return (little_endian(sum, 4) + little_endian(data.size(), 2) + static_cast<char>(place)).append(data);
  }

  std::string framed(std::string_view record) const {
    std::string bytes;
    uint64_t room = kBlock - size_ % kBlock;
    if (room < kPieceHeader) {
      bytes.assign(room, '\0');
      room = kBlock;
    }
    bool first = true;
    do {
      const std::string_view part = record.substr(0, std::min(record.size(), room - kPieceHeader));
      record.remove_prefix(part.size());
      const Place ends = first ? kWhole : kLast, goes_on = first ? kFirst : kMiddle;
      bytes += piece(record.empty() ? ends : goes_on, part);
      first = false;
      room = kBlock;
    } while (!record.empty());
    return bytes;
  }

  file_io::FileWriter file_;
  uint64_t size_ = 0;
  int64_t records_ = 0;
};

// Fields of wandb/proto/wandb_internal.proto, by message.
enum { kHistory = 2, kSummary = 3, kConfig = 5, kConsole = 13, kRun = 17, kExit = 18, kHeader = 21 };  // Record
enum { kItemKey = 1, kItemValue = 16 };
enum { kHistoryItem = 1, kHistoryStep = 2 };
enum { kRunId = 1, kRunEntity = 2, kRunProject = 3, kRunConfig = 4, kRunName = 8, kRunHost = 13, kRunStartTime = 17 };
enum { kConsoleStream = 1, kConsoleTime = 2, kConsoleLine = 3, kConsoleStdout = 1 };

// A folder of its own: two runs of one id may begin in the same second.
std::string create_run_folder(const std::string& folder, const std::string& id) {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  std::array<char, 32> time{};
  std::strftime(time.data(), time.size(), "%Y%m%d_%H%M%S", &local);
  const std::string base = folder + "/offline-run-" + time.data() + "-" + id;
  std::string path = base;
  for (int copy = 1; std::filesystem::exists(path); ++copy) path = base + "-" + std::to_string(copy);
  file_io::create_folder(path);
  return path;
}

// As Python's json module writes them, which W&B reads: NaN and Infinity are bare words there.
std::string wandb_json(double value) {
  if (std::isfinite(value)) return Json(value).dump();
  return std::isnan(value) ? "NaN" : value > 0 ? "Infinity" : "-Infinity";
}

std::string wandb_json(const LogValue& value) {
  if (const auto* number = std::get_if<double>(&value)) return wandb_json(*number);
  if (const auto* count = std::get_if<int64_t>(&value)) return std::to_string(*count);
  return json_text(std::get<std::string>(value));
}

// ConfigRecord and SummaryRecord alike: `step` is their field 1, as `item` is HistoryRecord's.
ProtobufWriter encoded(const Items& items) {
  ProtobufWriter message;
  for (const auto& [name, json] : items) {
    message.message(kHistoryItem, ProtobufWriter().text(kItemKey, name).bytes(kItemValue, json));
  }
  return message;
}

ProtobufWriter timestamp(double wall_time) {
  const double seconds = std::floor(wall_time);
  return ProtobufWriter()
      .integer(1, static_cast<int64_t>(seconds))
      .integer(2, static_cast<int64_t>((wall_time - seconds) * 1e9));
}

// `config` is a JSON object.
Items config_items(const std::string& config) {
  const Json parsed = Json::parse(config, nullptr, false);
  if (!parsed.is_object()) throw ConfigError("[WandbSink] config is '" + config + "', expected a JSON object");
  Items items;
  for (const auto& [name, value] : parsed.items()) items[name] = json_text(value);
  return items;
}

Items items_of(const LogRecord& log) {
  Items items;
  for (const auto& [name, value] : log.values) items[name] = wandb_json(value);
  return items;
}

// One offline-run folder, from the first record on.
class WandbSink : public LogSink {
 public:
  WandbSink(LogSinkOptions options, const std::string& config)
      : options_(std::move(options)), config_(config_items(config)) {
    make_output_folder(kWandb, options_.folder);
  }
  // Ends the run in the file, as failed if there was an error record.
  ~WandbSink() override {
    if (!file_) return;
    if (const std::exception_ptr error = caught([this] { end(); })) log_error(text_of(error));
  }

  void write(const LogRecord& log) override {
    if (!file_) begin(log);
    last_time_ = log.wall_time;
    if (log.kind == "start") {
      if (!log.values.empty()) file_->append(kConfig, encoded(items_of(log)));
    } else if (log.kind == "stop") {
      flush();
      if (!log.values.empty()) file_->append(kSummary, encoded(items_of(log)));
    } else {
      add_to_row(log);
    }
    if (log.kind == "error" || has_diverged(log)) exit_code_ = 1;
    if (!log.line.empty()) write_line(log);
  }

  // Writes the row so far; values of the same step that come later make another one.
  void flush() override {
    if (row_.empty()) return;
    Items items = row_;
    items["_timestamp"] = wandb_json(row_time_);
    items["_runtime"] = wandb_json(row_time_ - start_time_);
    items["_step"] = std::to_string(step_);
    ProtobufWriter message = encoded(items);
    file_->append(kHistory, message.message(kHistoryStep, ProtobufWriter().integer(1, step_)));
    row_.clear();  // now it is in the file, whatever comes of the rest
    file_->append(kSummary, encoded(items));
  }
  bool takes_images() const override { return false; }

 private:
  void begin(const LogRecord& first) {
    const std::string id = options_.id.empty() ? file_io::random_id().substr(0, 8) : options_.id;
    auto file = std::make_unique<WandbFile>(create_run_folder(options_.folder, id) + "/run-" + id + ".wandb");
    start_time_ = first.wall_time;
    step_ = goes_on(first) ? first.step : 0;
    file->append(kHeader, ProtobufWriter().message(1, ProtobufWriter().text(1, "duet")));
    ProtobufWriter message;
    message.text(kRunId, id).text(kRunProject, options_.project.empty() ? "duet" : options_.project);
    if (!options_.entity.empty()) message.text(kRunEntity, options_.entity);
    if (!options_.name.empty()) message.text(kRunName, options_.name);
    message.message(kRunConfig, encoded(config_)).text(kRunHost, host_name());
    file->append(kRun, message.message(kRunStartTime, timestamp(start_time_)));
    file_ = std::move(file);
  }

  void end() {
    flush();
    const auto seconds = static_cast<int64_t>(std::max(0.0, last_time_ - start_time_));
    file_->append(kExit, ProtobufWriter().integer(1, exit_code_).integer(2, seconds));
  }

  // Without an error, and no success either.
  static bool has_diverged(const LogRecord& log) {
    return log.kind == "stop" && std::ranges::any_of(log.values, [](const auto& value) {
             return value.first == "outcome" && value.second == LogValue(std::string("diverged"));
           });
  }

  void add_to_row(const LogRecord& log) {
    if (log.step > step_) flush();
    const bool earlier = log.step < step_;
    step_ = std::max(step_, log.step);
    row_time_ = log.wall_time;
    const std::string prefix = log.kind == "text" ? "" : log.kind + "/";
    for (const auto& [name, value] : log.values) {
      // Strings beside numbers (an estimated time of arrival, say) are for the terminal.
      if (log.kind == "text" || !std::holds_alternative<std::string>(value)) row_[prefix + name] = wandb_json(value);
    }
    for (const auto& [name, made] : log.histograms) {
      row_[name] = Json{{"_type", "histogram"}, {"values", made.counts}, {"bins", made.edges}}.dump();
    }
    if (earlier && !log.values.empty()) row_[log.kind + "/step"] = std::to_string(log.step);
  }

  void write_line(const LogRecord& log) {
    file_->append(kConsole, ProtobufWriter()
                                .integer(kConsoleStream, kConsoleStdout)
                                .message(kConsoleTime, timestamp(log.wall_time))
                                .text(kConsoleLine, log.line + "\n"));
  }

  LogSinkOptions options_;
  Items config_;
  std::unique_ptr<WandbFile> file_;
  double start_time_ = 0, last_time_ = 0;
  int64_t step_ = 0;
  Items row_;
  double row_time_ = 0;
  int exit_code_ = 0;
};

}  // namespace

std::unique_ptr<LogSink> wandb_sink(LogSinkOptions options, const std::string& config) {
  options.type = "wandb";
  check_options(options);
  return std::make_unique<WandbSink>(std::move(options), config);
}

}  // namespace duet
