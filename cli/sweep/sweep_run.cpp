#include "cli/sweep/sweep_run.h"
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <limits>
#include <utility>
#include <c10/util/StringUtil.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/error.h"
#include "cli/report.h"

extern char** environ;

namespace duet {

namespace {

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

}  // namespace

SweepRun::SweepRun(std::string folder, const std::vector<std::string>& words) : folder_(std::move(folder)) {
  std::vector<std::string> all = {std::filesystem::read_symlink("/proc/self/exe").string(), "train"};
  all.insert(all.end(), words.begin(), words.end());
  process_ = start_process(std::move(all), folder_ + "/output.txt");
}

SweepRun::~SweepRun() {
  if (process_ < 0) return;
  stop();
  while (!has_ended()) ::usleep(10'000);
}

bool SweepRun::has_ended() {
  if (process_ < 0) return true;
  int status = 0;
  const pid_t ended = ::waitpid(process_, &status, WNOHANG);
  if (ended == 0 || (ended < 0 && errno == EINTR)) return false;
  exit_code_ = ended < 0 ? 1 : WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  process_ = -1;
  return true;
}

void SweepRun::stop() const {
  if (process_ >= 0) ::kill(process_, SIGTERM);
}

namespace {

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

}  // namespace

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

}  // namespace duet
