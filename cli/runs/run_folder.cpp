#include "cli/runs/run_folder.h"
#include <algorithm>
#include <array>
#include <cerrno>
#include <ctime>
#include <exception>
#include <filesystem>
#include <set>
#include <string_view>
#include <system_error>
#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <sys/file.h>
#include <unistd.h>
#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "io/bounded_json.h"
#include "io/file_io.h"
#include "metrics/metric.h"

namespace duet {

namespace fs = std::filesystem;

namespace {

bool is_saved_config(const fs::path& path) {
  constexpr std::string_view kStart = "# The config of this run as it was resolved";
  try {
    const file_io::FileReader file(path.string());
    std::string start(std::min<uint64_t>(file.size(), kStart.size()), '\0');
    file.read(0, start.data(), start.size());
    return start == kStart;
  } catch (const file_io::IoError&) {
    return false;
  }
}

// Where the log lies: the config may name another file.
std::string log_path(const std::string& folder, const SavedConfig& config) {
  std::error_code ignored;
  for (const auto& [path, value] : config.values) {
    const bool is_file = path == "default_hooks.logger.file" ||
                         (path.starts_with("default_hooks.logger.sinks.") && path.ends_with(".file"));
    if (is_file && fs::is_regular_file(value.text, ignored)) return value.text;
  }
  return folder + "/log.jsonl";
}

std::string without_slash(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

// The folder's own name, or as much of the path as tells it from the others.
std::vector<std::string> short_names(const std::vector<std::string>& paths) {
  std::vector<std::string> names;
  for (const std::string& path : paths) {
    std::error_code failed;
    const fs::path whole = fs::weakly_canonical(path, failed);
    names.push_back((failed ? fs::path(path) : whole).filename().string());
  }
  if (std::set<std::string>(names.begin(), names.end()).size() < names.size()) return paths;
  return names;
}

}  // namespace

bool is_run_folder(const std::string& path) {
  std::error_code ignored;
  return fs::is_regular_file(path + "/log.jsonl", ignored) || fs::is_regular_file(path + "/run.lock", ignored) ||
         is_saved_config(path + "/config.yaml");
}

RunFolder read_progress(const std::string& path) {
  RunFolder run;
  run.path = without_slash(path);
  run.name = short_names({run.path}).front();
  run.config = read_saved_config(run.path + "/config.yaml");
  run.log = read_logged_run(log_path(run.path, run.config));
  if (run.log.mode.empty()) run.log.mode = run.config.text("mode");
  run.best = best_metric_of(run.config, run.log);
  return run;
}

RunFolder read_run_folder(const std::string& path) {
  require<ConfigError>(is_run_folder(path),
                       "[duet] found no log.jsonl, run.lock or config.yaml of a run in '" + path +
                           "', expected the work_dir of a run; duet list FOLDER shows those below");
  RunFolder run = read_progress(path);
  run.state = status_of_run(run.path, run.log);
  run.environment = read_environment(run.path, run.log);
  return run;
}

std::vector<RunFolder> read_run_folders(const std::vector<std::string>& paths) {
  std::vector<RunFolder> runs;
  std::set<std::string> seen;
  for (const std::string& path : paths) {
    runs.push_back(read_run_folder(path));
    require<ConfigError>(seen.insert(fs::weakly_canonical(path).string()).second,
                         "[duet] found the run '" + path + "' twice, expected each once; leave one of them out");
  }
  std::vector<std::string> clean;
  for (const RunFolder& run : runs) clean.push_back(run.path);
  const std::vector<std::string> names = short_names(clean);
  for (std::size_t i = 0; i < runs.size(); ++i) runs[i].name = names[i];
  return runs;
}

std::vector<std::string> find_run_folders(const std::string& root) {
  std::error_code failed;
  if (!fs::is_directory(root, failed)) {
    throw ConfigError("[duet] found no folder '" + root + "', expected one that holds runs; name it: duet list FOLDER");
  }
  std::vector<std::string> found;
  const std::string start = without_slash(root);
  if (is_run_folder(start)) found.push_back(start);
  fs::recursive_directory_iterator entry(start, fs::directory_options::skip_permission_denied, failed);
  for (const fs::recursive_directory_iterator end; !failed && entry != end; entry.increment(failed)) {
    std::error_code ignored;
    if (!entry->is_directory(ignored)) continue;
    const std::string name = entry->path().filename().string();
    if (name == "checkpoints" || name.starts_with("checkpoints.") || name == "vis_data" || name.starts_with(".git")) {
      entry.disable_recursion_pending();
    } else if (is_run_folder(entry->path().string())) {
      found.push_back(entry->path().string());
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

namespace {

enum class Lock { kFree, kHeld, kUnknown };

// Shared, and for an instant: a run that begins in that very moment would find it taken.
Lock lock_of(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);  // a pipe would wait for a writer
  if (file < 0) return Lock::kUnknown;
  const bool got = ::flock(file, LOCK_SH | LOCK_NB) == 0;
  const bool held = !got && errno == EWOULDBLOCK;
  ::close(file);
  return got ? Lock::kFree : held ? Lock::kHeld : Lock::kUnknown;
}

// A run of a program that takes no lock is known by its lines alone.
bool logged_lately(const LoggedRun& log) {
  constexpr double kLately = 300;  // seconds
  const double age = static_cast<double>(std::time(nullptr)) - seconds_of_time(log.last_time);
  return age > -kLately && age < kLately;
}

// A sweep keeps what its run has printed; one that has ended before its first line has failed.
bool is_of_sweep(const std::string& folder) {
  std::error_code failed;
  return std::filesystem::is_regular_file(folder + "/output.txt", failed);
}

// Of cells of a confusion matrix none is a figure to go by.
bool is_candidate(const Curve& curve) {
  return curve.kind != "train" && !curve.points.empty() && curve.name.find("confusion_") == std::string::npos;
}

// The first one of a list.
std::string metric_of_best(const SavedConfig& config) {
  const std::string text = config.text("default_hooks.checkpoint.save_best");
  return text.starts_with("[") ? text.substr(1, text.find_first_of(",]") - 1) : text;
}

const Curve* chosen_curve(const SavedConfig& config, const LoggedRun& log) {
  const std::string wanted = metric_of_best(config);
  for (const char* kind : {"val", "test"}) {
    if (const Curve* found = log.curve(kind, wanted); found != nullptr && is_candidate(*found)) return found;
    const Curve* loss = nullptr;
    for (const Curve& curve : log.curves) {
      if (curve.kind != kind || !is_candidate(curve)) continue;
      if (curve.name != "loss" && !curve.name.ends_with("/loss")) return &curve;
      if (loss == nullptr) loss = &curve;
    }
    if (loss != nullptr) return loss;
  }
  return nullptr;
}

}  // namespace

const char* to_string(RunStatus state) {
  static constexpr std::array kWords = {"no log", "running", "running?", "finished", "stopped", "failed", "broken off"};
  return kWords.at(static_cast<std::size_t>(state));
}

RunStatus status_of_run(const std::string& folder, const LoggedRun& log) {
  if (log.end) return *log.end;
  const Lock lock = lock_of(folder + "/run.lock");
  if (lock == Lock::kHeld) return RunStatus::kRunning;
  if (log.lines == 0) return is_of_sweep(folder) ? RunStatus::kFailed : RunStatus::kNoLog;
  const bool may_run = lock == Lock::kUnknown && logged_lately(log);
  return may_run ? RunStatus::kProbablyRunning : RunStatus::kBrokenOff;
}

std::optional<bool> direction_of(const std::string& name, const std::string& rule) {
  try {
    return less_is_better("duet", name, rule == "greater" || rule == "less" ? rule : "");
  } catch (const ConfigError&) {
    return std::nullopt;
  }
}

BestMetric best_metric_of(const SavedConfig& config, const LoggedRun& log) {
  BestMetric best;
  const Curve* const curve = chosen_curve(config, log);
  if (curve == nullptr) return best;
  const std::string rule = config.text("default_hooks.checkpoint.rule");
  best.is_less_better = direction_of(curve->name, rule).value_or(false);  // this is for show
  best.last = curve->points.back().value;
  BestValue value{.is_less_better = best.is_less_better};
  for (const CurvePoint& point : curve->points) {
    if (std::isfinite(point.value)) value.add(point.value, point.step);
  }
  best.best = value.value;
  best.best_step = value.step;
  best.name = curve->kind == "val" ? curve->name : curve->kind + "/" + curve->name;
  return best;
}

double last_loss_of(const RunFolder& run) {
  const Curve* const curve = run.log.curve("train", "loss");
  if (curve == nullptr || curve->points.empty()) return std::numeric_limits<double>::quiet_NaN();
  return curve->points.back().value;
}

namespace {

using Json = nlohmann::ordered_json;

// Its values by dotted path.
void add_flat(const std::string& path, const Json& value, NamedTexts& out) {
  if (value.is_object() && !value.empty()) {
    for (const auto& [key, item] : value.items()) add_flat(path.empty() ? key : path + "." + key, item, out);
    return;
  }
  const bool is_text = value.is_string();
  out.emplace_back(path,
                   is_text ? value.get<std::string>() : value.dump(-1, ' ', false, Json::error_handler_t::replace));
}

// Empty if it cannot be read, or is beyond what a run writes there.
std::string small_text(const std::string& path) {
  constexpr uint64_t kMost = uint64_t{16} << 20;
  try {
    return file_io::read_text(path, kMost);
  } catch (const file_io::IoError&) {
    return "";
  }
}

void add_manifest(const std::string& folder, NamedTexts& out) {
  try {
    const auto checkpoints = CheckpointStore(CheckpointStore::root_of(folder)).list();
    if (checkpoints.empty()) return;
    const Manifest manifest = CheckpointStore::read_manifest(checkpoints.front());
    out.emplace_back("newest checkpoint", "step " + std::to_string(manifest.step) + ", saved " + manifest.created);
    out.emplace_back("checkpoint.duet", manifest.duet_version);
    out.emplace_back("checkpoint.libtorch", manifest.torch_version);
  } catch (const std::exception& error) {
    out.emplace_back("newest checkpoint", std::string("not readable: ") + error.what());
  }
}

}  // namespace

NamedTexts read_environment(const std::string& folder, const LoggedRun& log) {
  NamedTexts environment;
  const auto json = parse_json_or_discard<Json>(small_text(folder + "/environment.json"));
  if (json.is_object()) add_flat("", json, environment);
  for (const auto& [name, text] : log.texts) {
    if (name == "runtime_info") environment.emplace_back(name, text);
  }
  add_manifest(folder, environment);
  return environment;
}

}  // namespace duet
