#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <list>
#include <sstream>
#include <c10/util/StringUtil.h>
#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/error.h"
#include "cli/commands/commands.h"
#include "cli/report.h"
#include "cli/runs/run_folder.h"
#include "cli/runs/text_columns.h"
#include "cli/work_dir.h"
#include "io/file_io.h"

extern char** environ;

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

int start_process(std::vector<std::string> words, const std::string& output) {
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, output.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
  posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
  pid_t process = -1;
  const int failed = posix_spawn(&process, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) throw ConfigError("[sweep] cannot start '" + words[0] + "': " + std::strerror(failed));
  return process;
}

// `duet train` in a process of its own. What it prints goes to output.txt in the folder of its run.
class SweepRun {
 public:
  explicit SweepRun(const PlannedRun& run) : run_(run) {
    std::vector<std::string> words = {std::filesystem::read_symlink("/proc/self/exe").string(), "train"};
    words.insert(words.end(), run.words.begin(), run.words.end());
    process_ = start_process(std::move(words), run.folder + "/output.txt");
  }
  ~SweepRun() {
    stop();
    while (!has_ended()) ::usleep(10'000);
  }
  SweepRun(const SweepRun&) = delete;
  SweepRun& operator=(const SweepRun&) = delete;

  const PlannedRun& run() const { return run_; }
  int exit_code() const { return exit_code_; }
  // Whether it has ended; exit_code() then holds.
  bool has_ended() {
    if (process_ < 0) return true;
    int status = 0;
    const pid_t ended = ::waitpid(process_, &status, WNOHANG);
    if (ended == 0 || (ended < 0 && errno == EINTR)) return false;
    exit_code_ = ended < 0 ? 1 : WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    process_ = -1;
    return true;
  }
  // Asks it to stop and save.
  void stop() const {
    if (process_ >= 0) ::kill(process_, SIGTERM);
  }

 private:
  const PlannedRun& run_;
  pid_t process_ = -1;
  int exit_code_ = 0;
};

// What a run had reached when: the best value of its metric up to a step. NaN if it has none by then.
double best_until(const RunFolder& run, double step) {
  const BestMetric& metric = run.best;
  const Curve* curve = run.log.curve("val", metric.name);
  BestValue best{.is_less_better = metric.is_less_better};
  if (curve == nullptr) return best.value;
  for (const CurvePoint& point : curve->points) {
    if (point.step <= step) best.add(point.value, point.step);
  }
  return best.value;
}

// Why `run` need not go on: its best value so far is worse than the median of what the others had reached by that step
// (the median stopping rule of Golovin et al. 2017). Empty: it may still become the best, or fewer than three others
// have a value.
std::string reason_to_stop(const RunFolder& run, const std::vector<RunFolder>& others) {
  const BestMetric& metric = run.best;
  const Curve* curve = run.log.curve("val", metric.name);
  if (curve == nullptr || curve->points.empty()) return "";
  const double step = curve->points.back().step, own = best_until(run, step);
  std::vector<double> reached;
  for (const RunFolder& other : others) {
    const double best = best_until(other, step);
    if (!std::isnan(best)) reached.push_back(best);
  }
  constexpr std::size_t kFewest = 3;
  if (std::isnan(own) || reached.size() < kFewest) return "";
  const double middle = spread(reached).median;
  if (metric.is_less_better ? own <= middle : own >= middle) return "";
  return c10::str(metric.name, " ", own, " at step ", step, " is worse than ", middle, ", the median of ",
                  reached.size(), " runs");
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
      running_.emplace_back(run);
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
    for (const SweepRun& running : running_) {
      const std::string& folder = running.run().folder;
      if (is_stopped(folder)) continue;
      std::vector<RunFolder> others;
      for (const PlannedRun& other : runs_) {
        if (other.folder != folder) others.push_back(read_progress(other.folder));
      }
      const std::string reason = reason_to_stop(read_progress(folder), others);
      if (reason.empty()) continue;
      std::ofstream(folder + kStoppedFile) << reason << "\n";
      running.stop();
    }
  }

  void end(const SweepRun& ended) {
    const auto& [name, folder, config, words] = ended.run();
    const bool stopped_early = is_stopped(folder);
    if (ended.exit_code() == 0 || (stopped_early && ended.exit_code() == kInterrupted)) {
      return say(name + (stopped_early ? ": stopped early" : ": done"));
    }
    if (stop_signal != 0) return say(name + ": stopped");
    failed_ = true;
    say(c10::str(name, ": failed with exit code ", ended.exit_code(), "; see ", folder, "/output.txt"));
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
