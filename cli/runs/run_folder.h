#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>
#include "cli/runs/logged_run.h"
#include "cli/runs/saved_config.h"

namespace duet {

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

// What a run has noted of its surroundings: environment.json in its folder, what it logged as "runtime_info" and
// "environment", and the versions in the manifest of its newest checkpoint.
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
