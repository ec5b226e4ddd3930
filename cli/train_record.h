#pragma once

#include <exception>
#include <string>
#include "cli/report.h"
#include "cli/validation_record.h"

namespace duet {

struct Run;

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
