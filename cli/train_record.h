#pragma once

#include <exception>
#include <map>
#include <string>
#include "cli/report.h"
#include "cli/runs/run_folder.h"
#include "metrics/metric.h"

namespace duet {

struct Run;

// The results of all validations of a run: the last ones, and the best of each whose name says what is better.
class ValidationRecord {
 public:
  void add(const MetricValues& results, int64_t step);
  // {"final": {name: value}, "best": {name: {"value": ..., "step": ...}}}
  nlohmann::ordered_json json() const;

 private:
  MetricValues last_;
  std::map<std::string, BestValue> best_;
};

// What is noted of a training for --json.
struct TrainRecord {
  std::string mode;
  Measurements measured{};
  ValidationRecord validations{};
};

// How it ended: by `error`, if there is one.
struct TrainEnd {
  std::exception_ptr error;
  int exit_code = 0;
};

// Writes report_of() the run, the results of its validations, state, exit code and reason to `path`, if there is one.
// Throws ConfigError if that fails.
void write_train_record(const std::string& path, Run& run, const TrainRecord& record, const TrainEnd& end);

}  // namespace duet
