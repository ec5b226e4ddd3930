#include <cerrno>
#include <ctime>
#include <filesystem>
#include <system_error>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>
#include "cli/runs/run_folder.h"

namespace duet {

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

}  // namespace

const char* to_string(RunStatus state) {
  switch (state) {
    case RunStatus::kNoLog: return "no log";
    case RunStatus::kRunning: return "running";
    case RunStatus::kProbablyRunning: return "running?";
    case RunStatus::kFinished: return "finished";
    case RunStatus::kStopped: return "stopped";
    case RunStatus::kFailed: return "failed";
    case RunStatus::kBrokenOff: return "broken off";
  }
  return "";
}

RunStatus status_of_run(const std::string& folder, const LoggedRun& log) {
  if (log.end) return *log.end;
  const Lock lock = lock_of(folder + "/run.lock");
  if (lock == Lock::kHeld) return RunStatus::kRunning;
  if (log.lines == 0) return is_of_sweep(folder) ? RunStatus::kFailed : RunStatus::kNoLog;
  const bool may_run = lock == Lock::kUnknown && logged_lately(log);
  return may_run ? RunStatus::kProbablyRunning : RunStatus::kBrokenOff;
}

}  // namespace duet
