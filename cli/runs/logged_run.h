#pragma once

#include <cstdint>
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

}  // namespace duet
