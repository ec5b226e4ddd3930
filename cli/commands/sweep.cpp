#include <algorithm>
#include <atomic>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <list>
#include <sstream>
#include <c10/util/StringUtil.h>
#include <nlohmann/json.hpp>
#include <unistd.h>
#include "base/error.h"
#include "cli/commands/commands.h"
#include "cli/report.h"
#include "cli/runs/run_folder.h"
#include "cli/runs/text_columns.h"
#include "cli/sweep/sweep_grid.h"
#include "cli/sweep/sweep_run.h"
#include "cli/work_dir.h"
#include "io/file_io.h"

namespace duet {

// `duet sweep`: a run for each combination of values, and which was best.

namespace {

using Json = nlohmann::ordered_json;

std::atomic<int> stop_signal{0};

// What ended a run that could not become the best any more; a later sweep leaves it as it is.
constexpr const char* kStoppedFile = "/stopped_early.txt";

bool is_stopped(const std::string& folder) {
  std::error_code failed;
  return std::filesystem::is_regular_file(folder + kStoppedFile, failed);
}

// Comments say where values came from: an edit elsewhere in the file moves their lines.
std::string without_comments(const std::string& yaml) {
  std::istringstream lines(yaml);
  std::string text;
  for (std::string line; std::getline(lines, line);) text += line.substr(0, line.rfind("  # ")) + "\n";
  return text;
}

std::string state_of(const RunFolder& run) {
  if (is_stopped(run.path)) return "stopped early";
  const RunStatus state = status_of_run(run.path, run.log);
  return state == RunStatus::kNoLog ? "not begun" : to_string(state);
}

// One run of the sweep, and the config that its folder belongs to.
struct PlannedRun {
  std::string name, folder, config;
  std::vector<std::string> words;  // of `duet train`
};

// Loads the config of each: a mistake in a value shows before the first run.
std::vector<PlannedRun> plan_runs(const Arguments& arguments, std::string& root) {
  std::vector<PlannedRun> runs;
  for (const SweepPoint& point : sweep_points(arguments.overrides)) {
    Arguments one = arguments;
    one.overrides = point.overrides;
    const RunConfig config = load_run_config(one);
    if (runs.empty()) root = config.work_dir + "/sweep";
    PlannedRun run{point.name, root + "/" + point.name, without_comments(config.root.dump()), {arguments.config}};
    run.words.insert(run.words.end(), point.overrides.begin(), point.overrides.end());
    run.words.push_back("work_dir=" + run.folder);
    if (!arguments.mode.empty()) run.words.insert(run.words.end(), {"--mode", arguments.mode});
    run.words.insert(run.words.end(), {"--resume", "auto"});
    runs.push_back(std::move(run));
  }
  return runs;
}

bool holds(const std::string& path, const std::string& text) try {
  return file_io::read_text(path, text.size()) == text;
} catch (const file_io::IoError&) {
  return false;  // longer, or no regular file
}

// A folder belongs to one config: results of another are no results of this sweep.
void claim(const PlannedRun& run) {
  const std::string path = run.folder + "/sweep.yaml";
  std::error_code failed;
  if (std::filesystem::exists(path, failed)) {
    require<ConfigError>(holds(path, run.config),
                         "[sweep] '" + run.folder + "' holds a run of another config (" + path +
                             "), expected one of this; choose another work_dir, or remove the folder");
    return;
  }
  make_folder(run.folder);
  require<ConfigError>(static_cast<bool>(std::ofstream(path) << run.config),
                       "[sweep] cannot write '" + path + "'; choose another work_dir");
}

class Sweep {
 public:
  Sweep(const Arguments& arguments, const std::vector<PlannedRun>& runs) : arguments_(arguments), runs_(runs) {}

  // The exit code: 0 if every run ended as it should.
  int run() {
    for (const PlannedRun& run : runs_) claim(run);
    for (const PlannedRun& run : runs_) {
      if (is_stopped(run.folder) || read_progress(run.folder).log.end == RunStatus::kFinished) {
        say(run.name + ": done before");
        continue;
      }
      while (std::ssize(running_) >= arguments_.jobs && stop_signal == 0) wait();
      if (stop_signal != 0) break;
      running_.emplace_back(run.folder, run.words);
      say(run.name + ": begun");
    }
    while (!running_.empty()) wait();
    return stop_signal != 0 ? kInterrupted : failed_ ? 1 : 0;
  }

 private:
  static void say(const std::string& text) { std::cout << text << std::endl; }

  void wait() {
    ::usleep(100'000);
    if (stop_signal != 0 && !std::exchange(passed_on_, true)) {
      for (const SweepRun& run : running_) run.stop();
    }
    if (arguments_.stop_bad && ++turns_ % 10 == 0) stop_bad();
    running_.remove_if([&](SweepRun& run) { return run.has_ended() && (end(run), true); });
  }

  void stop_bad() const {
    for (const SweepRun& run : running_) {
      if (is_stopped(run.folder())) continue;
      std::vector<RunFolder> others;
      for (const PlannedRun& other : runs_) {
        if (other.folder != run.folder()) others.push_back(read_progress(other.folder));
      }
      const std::string reason = reason_to_stop(read_progress(run.folder()), others);
      if (reason.empty()) continue;
      std::ofstream(run.folder() + kStoppedFile) << reason << "\n";
      run.stop();
    }
  }

  void end(const SweepRun& run) {
    const std::string name = std::filesystem::path(run.folder()).filename();
    const bool stopped_early = is_stopped(run.folder());
    if (run.exit_code() == 0 || (stopped_early && run.exit_code() == kInterrupted)) {
      return say(name + (stopped_early ? ": stopped early" : ": done"));
    }
    if (stop_signal != 0) return say(name + ": stopped");
    failed_ = true;
    say(c10::str(name, ": failed with exit code ", run.exit_code(), "; see ", run.folder(), "/output.txt"));
  }

  const Arguments& arguments_;
  const std::vector<PlannedRun>& runs_;
  std::list<SweepRun> running_;
  bool failed_ = false, passed_on_ = false;
  int64_t turns_ = 0;
};

// The best first; runs without a result last.
std::vector<RunFolder> ranked(const std::vector<PlannedRun>& planned) {
  std::vector<RunFolder> runs;
  for (const PlannedRun& run : planned) {
    runs.push_back(read_progress(run.folder));
    runs.back().name = run.name;
  }
  std::ranges::stable_sort(runs, [](const RunFolder& a, const RunFolder& b) {
    const bool has_a = a.best.has_value(), has_b = b.best.has_value();
    if (!has_a || !has_b) return has_a && !has_b;
    return a.best.is_less_better ? a.best.best < b.best.best : a.best.best > b.best.best;
  });
  return runs;
}

void show(const std::vector<RunFolder>& runs, const std::string& root, const std::string& json_file) {
  Json json = Json::array();
  std::vector<std::vector<std::string>> rows = {{"", "run", "state", "best", "at step", "last", "steps", "seconds"}};
  for (const RunFolder& run : runs) {
    const BestMetric& best = run.best;
    const bool none = !best.has_value();
    rows.push_back({std::to_string(rows.size()), run.name, state_of(run),
                    none ? "-" : c10::str(best.name, " ", best.best), none ? "-" : c10::str(best.best_step),
                    none ? "-" : c10::str(best.last), std::to_string(run.log.step),
                    c10::str(std::round(run.log.seconds * 10) / 10)});
    json.push_back({{"run", run.name},
                    {"folder", run.path},
                    {"state", state_of(run)},
                    {"steps", run.log.step},
                    {"seconds", run.log.seconds}});
    if (!none) json.back()["best"] = {{"metric", best.name}, {"value", best.best}, {"step", best.best_step}};
  }
  write_json(json_file, json);
  std::cout << "\n" << text_columns(rows) << "\nto look at them: duet report " << root << "/*/\n";
  if (runs.front().best.has_value()) {
    std::cout << "to use the best one: duet predict '" << runs.front().path << "/config.yaml'\n";
  }
  std::cout << std::flush;
}

}  // namespace

int sweep_command(const Arguments& arguments) {
  std::string root;
  const std::vector<PlannedRun> runs = plan_runs(arguments, root);
  make_folder(root);
  const RunLock lock(root, "sweep");  // another one would start the same runs
  Sweep sweep(arguments, runs);
  for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, [](int number) { stop_signal = number; });
  const int code = sweep.run();
  show(ranked(runs), root, arguments.json);
  return code;
}

}  // namespace duet
