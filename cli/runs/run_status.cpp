#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <limits>
#include <system_error>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>
#include "base/error.h"
#include "cli/runs/run_folder.h"
#include "metrics/metric.h"

namespace duet {

// How a run stands, and how good it is.

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

}  // namespace duet
