#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace duet {

// What a run has logged: its JSON lines, put in order.

struct CurvePoint {
  double step = 0;
  double seconds = 0;  // since the run began; from a stop to the resume no time passes
  double value = 0;    // may be NaN or infinite
};

struct Curve {
  std::string kind;  // train, val, test
  std::string name;
  std::vector<CurvePoint> points;  // steps only grow
};

struct LoggedHistogram {
  std::string name;
  double step = 0;
  std::vector<double> edges;  // one more than counts
  std::vector<double> counts;
};

// kProbablyRunning: it logged minutes ago, and this machine cannot tell. kBrokenOff: its process is gone and has not
// said why.
enum class RunStatus { kNoLog, kRunning, kProbablyRunning, kFinished, kStopped, kFailed, kBrokenOff };

const char* to_string(RunStatus state);

struct LoggedRun {
  int64_t lines = 0;
  // No JSON object (half a line, after a crash), longer than 16 MiB, or with a name beyond the first 20 000.
  int64_t unreadable_lines = 0;
  int64_t earlier_runs = 0;  // that the file holds too and that are left out here
  std::string mode, run_id;
  std::string began, last_time;  // as the lines have them: ISO 8601, UTC
  double seconds = 0;            // of training
  int64_t planned_steps = 0;     // 0: unknown
  int64_t step = 0, epoch = 0;   // of the last line of training
  std::optional<RunStatus> end;  // as a line says; nothing: it goes on, or the process was killed
  std::string end_reason;        // of a stop, or the error
  std::vector<Curve> curves;
  std::vector<std::pair<std::string, std::string>> texts;  // the last one of each name
  std::vector<LoggedHistogram> histograms;

  // Null if there is none.
  const Curve* curve(const std::string& kind, const std::string& name) const;
};

// Reads the file as far as it goes; one that is not there, or is no regular file, gives no lines. Of several runs that
// began in the same file the last one counts, and of steps that it ran twice (after a resume or a rollback) the later
// run.
LoggedRun read_logged_run(const std::string& path);

// Seconds since 1970 of "2026-11-23T12:00:00.250Z"; 0 if it is no such time.
double seconds_of_time(const std::string& text);

// The config.yaml that a run has saved: every value with where it came from.

struct SavedValue {
  std::string text;
  std::string origin;  // "examples/a.yaml:12", "command line", "default"; empty: unknown
};

struct SavedConfig {
  std::vector<std::pair<std::string, SavedValue>> values;  // by dotted path, in the order of the file
  std::string problem;                                     // why there are none

  // The value's text; empty if there is none.
  std::string text(const std::string& path) const;
};

// Never throws: what cannot be read is the config's `problem`.
SavedConfig read_saved_config(const std::string& path);

// A folder that a run has written: its work_dir.

using NamedTexts = std::vector<std::pair<std::string, std::string>>;

// The best and the last result of an evaluation that a run goes by.
struct BestMetric {
  std::string name;  // "accuracy", or "test/accuracy" where nothing was validated; empty: there is none
  bool is_less_better = false;
  double best = 0, last = 0;
  double best_step = 0;

  bool has_value() const { return !name.empty() && !std::isnan(best); }  // a run may never have given a number
};

struct RunFolder {
  std::string path;
  std::string name;  // what people call it; unlike that of other runs shown beside it
  SavedConfig config;
  LoggedRun log;
  BestMetric best;
  RunStatus state = RunStatus::kNoLog;
  NamedTexts environment;  // that the run has recorded: by name
};

// The best of values that come one after the other; NaN: there is none.
struct BestValue {
  bool is_less_better = false;
  double value = std::numeric_limits<double>::quiet_NaN();
  double step = 0;

  void add(double next, double at_step) {
    if (std::isnan(next) || (is_less_better ? next >= value : next <= value)) return;
    value = next;
    step = at_step;
  }
};

// How the run of this folder stands, by its log, its lock and the clock.
RunStatus status_of_run(const std::string& folder, const LoggedRun& log);

// What a run has noted of its surroundings: environment.json in its folder, what it logged as "runtime_info", and the
// versions in the manifest of its newest checkpoint.
NamedTexts read_environment(const std::string& folder, const LoggedRun& log);

// Whether there is a log, a lock or a saved config of duet's in the folder.
bool is_run_folder(const std::string& path);

// Throws ConfigError if `path` is no run folder. What a run has not written, or only in part, is left out.
RunFolder read_run_folder(const std::string& path);

// Without state and environment: whoever asks for the state may keep the run from taking its lock.
RunFolder read_progress(const std::string& path);

// Several at once, under names that tell them apart. Throws ConfigError for a folder that is named twice.
std::vector<RunFolder> read_run_folders(const std::vector<std::string>& paths);

// Paths of all run folders at `root` and below it. Throws ConfigError if `root` is no folder.
std::vector<std::string> find_run_folders(const std::string& root);

// Whether less of a metric is better, by the `rule` of a config (greater, less) or by its name; nothing if neither
// says.
std::optional<bool> direction_of(const std::string& name, const std::string& rule = "");

// What the config's save_best names, else the first result that is no loss, else the loss; of validation, else of
// tests.
BestMetric best_metric_of(const SavedConfig& config, const LoggedRun& log);

// The last loss of training; NaN if there is none.
double last_loss_of(const RunFolder& run);

}  // namespace duet
