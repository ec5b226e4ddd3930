#include "hooks/loggers/wandb_sink.h"
#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <utility>
#include <nlohmann/json.hpp>
#include <unistd.h>
#include "base/error.h"
#include "base/log.h"
#include "hooks/loggers/wandb_file.h"

namespace duet {

namespace {

using Json = nlohmann::ordered_json;
using Items = std::vector<std::pair<std::string, std::string>>;  // name and value as JSON

// Fields of wandb/proto/wandb_internal.proto.
namespace record {
enum { kHistory = 2, kSummary = 3, kConfig = 5, kConsole = 13, kRun = 17, kExit = 18, kHeader = 21 };
}
namespace item {
enum { kKey = 1, kValue = 16 };
}
namespace history {
enum { kItem = 1, kStep = 2 };
}
namespace run {
enum { kId = 1, kEntity = 2, kProject = 3, kConfig = 4, kName = 8, kHost = 13, kStartTime = 17 };
}
namespace console {
enum { kStream = 1, kTime = 2, kLine = 3, kStdout = 1 };
}

// The id of the newest run in the folder, or "". Names begin with the time.
std::string newest_id(const std::string& folder) {
  constexpr std::string_view kPattern = "offline-run-yyyymmdd_hhmmss-";
  std::string newest;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("offline-run-") && name.size() > kPattern.size()) newest = std::max(newest, name);
  }
  if (newest.empty()) return {};
  for (const auto& entry : std::filesystem::directory_iterator(folder + "/" + newest)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("run-") && name.ends_with(".wandb")) return name.substr(4, name.size() - 10);
  }
  return {};
}

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
std::string json_of(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return Json(value).dump();
}

std::string json_of(const LogValue& value) {
  if (const auto* number = std::get_if<double>(&value)) return json_of(*number);
  if (const auto* count = std::get_if<int64_t>(&value)) return std::to_string(*count);
  return Json(std::get<std::string>(value)).dump(-1, ' ', false, Json::error_handler_t::replace);
}

ProtobufWriter encoded(const std::string& name, const std::string& json) {
  return ProtobufWriter().text(item::kKey, name).bytes(item::kValue, json);
}

// ConfigRecord and SummaryRecord alike: `step` is their field 1, as `item` is HistoryRecord's.
ProtobufWriter encoded(const Items& items) {
  ProtobufWriter message;
  for (const auto& [name, json] : items) message.message(history::kItem, encoded(name, json));
  return message;
}

ProtobufWriter timestamp(double wall_time) {
  const double seconds = std::floor(wall_time);
  return ProtobufWriter()
      .integer(1, static_cast<int64_t>(seconds))
      .integer(2, static_cast<int64_t>((wall_time - seconds) * 1e9));
}

std::string host_name() {
  std::array<char, 256> host{};
  return gethostname(host.data(), host.size() - 1) == 0 ? host.data() : "";
}

Items config_items(const std::string& config) {
  const Json parsed = Json::parse(config);
  Items items;
  for (const auto& [name, value] : parsed.items()) {
    items.emplace_back(name, value.dump(-1, ' ', false, Json::error_handler_t::replace));
  }
  return items;
}

void require_name(const char* field, const std::string& value) {
  if (value.size() <= 128 && value.find_first_of("/\\#?%:") == std::string::npos) return;
  throw ConfigError(std::string("[WandbSink] ") + field + " is '" + value +
                    "', expected at most 128 characters without / \\ # ? % :");
}

}  // namespace

void WandbOptions::validate() const {
  if (folder.empty()) throw ConfigError("[WandbSink] folder is empty, expected a folder to write to");
  if (project.empty()) throw ConfigError("[WandbSink] project is empty, expected a name");
  require_name("project", project);
  require_name("entity", entity);
  require_name("id", id);
  const Json parsed = Json::parse(config, nullptr, false);
  if (!parsed.is_object()) throw ConfigError("[WandbSink] config is '" + config + "', expected a JSON object");
}

// One offline-run folder.
class WandbSink::Run {
 public:
  Run(const WandbOptions& options, const std::string& id, const LogRecord& first)
      : start_time_(first.wall_time),
        step_(goes_on(first) ? first.step : 0),
        file_(create_run_folder(options.folder, id) + "/run-" + id + ".wandb") {
    file_.append(record::kHeader, ProtobufWriter().message(1, ProtobufWriter().text(1, "duet")));
    ProtobufWriter message;
    message.text(run::kId, id).text(run::kProject, options.project);
    if (!options.entity.empty()) message.text(run::kEntity, options.entity);
    if (!options.name.empty()) message.text(run::kName, options.name);
    message.message(run::kConfig, encoded(config_items(options.config))).text(run::kHost, host_name());
    file_.append(record::kRun, message.message(run::kStartTime, timestamp(start_time_)));
  }

  void write(const LogRecord& log) {
    last_time_ = log.wall_time;
    if (log.kind == "start") {
      write_config(log);
    } else if (log.kind == "stop") {
      write_summary(log);
    } else {
      add_to_row(log);
    }
    if (log.kind == "error") exit_code_ = 1;
    if (!log.line.empty()) write_line(log);
  }

  // The row so far; values of the same step that come later make another one.
  void write_row() {
    if (row_.empty()) return;
    Items items = std::exchange(row_, {});
    items.emplace_back("_timestamp", json_of(row_time_));
    items.emplace_back("_runtime", json_of(row_time_ - start_time_));
    items.emplace_back("_step", std::to_string(step_));
    ProtobufWriter message = encoded(items);
    file_.append(record::kHistory, message.message(history::kStep, ProtobufWriter().integer(1, step_)));
    file_.append(record::kSummary, encoded(items));
  }

  void end() {
    write_row();
    const auto seconds = static_cast<int64_t>(std::max(0.0, last_time_ - start_time_));
    file_.append(record::kExit, ProtobufWriter().integer(1, exit_code_).integer(2, seconds));
  }

 private:
  void write_config(const LogRecord& log) {
    Items items;
    for (const auto& [name, value] : log.values) items.emplace_back(name, json_of(value));
    if (!items.empty()) file_.append(record::kConfig, encoded(items));
  }

  void write_summary(const LogRecord& log) {
    write_row();
    Items items;
    for (const auto& [name, value] : log.values) items.emplace_back(name, json_of(value));
    if (!items.empty()) file_.append(record::kSummary, encoded(items));
  }

  void add_to_row(const LogRecord& log) {
    if (log.step > step_) write_row();
    const bool earlier = log.step < step_;
    step_ = std::max(step_, log.step);
    row_time_ = log.wall_time;
    const std::string prefix = log.kind == "text" ? "" : log.kind + "/";
    for (const auto& [name, value] : log.values) {
      // Strings beside numbers (an estimated time of arrival, say) are for the terminal.
      if (log.kind == "text" || !std::holds_alternative<std::string>(value)) set(prefix + name, json_of(value));
    }
    if (earlier && !log.values.empty()) set(log.kind + "/step", std::to_string(log.step));
  }

  void set(const std::string& name, std::string json) {
    for (auto& [known, value] : row_) {
      if (known == name) {
        value = std::move(json);
        return;
      }
    }
    row_.emplace_back(name, std::move(json));
  }

  void write_line(const LogRecord& log) {
    file_.append(record::kConsole, ProtobufWriter()
                                       .integer(console::kStream, console::kStdout)
                                       .message(console::kTime, timestamp(log.wall_time))
                                       .text(console::kLine, log.line + "\n"));
  }

  double start_time_;
  double last_time_ = 0;
  int64_t step_;
  WandbFile file_;
  Items row_;
  double row_time_ = 0;
  int exit_code_ = 0;
};

WandbSink::WandbSink(WandbOptions options) : options_(std::move(options)) {
  options_.validate();
  try {
    file_io::create_folder(options_.folder);
  } catch (const file_io::IoError& error) {
    throw ConfigError(std::string("[WandbSink] ") + error.what() + ", expected a folder to write to; change work_dir");
  }
}

WandbSink::~WandbSink() {
  if (!run_) return;
  try {
    run_->end();
  } catch (const std::exception& error) {
    log_error(error.what());
  }
}

void WandbSink::write(const LogRecord& record) {
  if (!run_) {
    std::string id = options_.id;
    if (id.empty() && goes_on(record)) id = newest_id(options_.folder);
    if (id.empty()) id = file_io::random_id().substr(0, 8);
    run_ = std::make_unique<Run>(options_, id, record);
  }
  run_->write(record);
}

void WandbSink::flush() {
  if (run_) run_->write_row();
}

}  // namespace duet
