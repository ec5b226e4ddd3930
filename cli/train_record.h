#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <utility>
#include <vector>
#include <nlohmann/json_fwd.hpp>
#include "cli/report.h"
#include "metrics/metric.h"

namespace duet {

class GraphTrainer;
struct Run;

// What is noted of a training for --json.
struct TrainRecord {
  std::string mode;
  Measurements measured{};
  std::vector<std::pair<int64_t, MetricValues>> validations{};  // by the step that they came after
};

// How it ended: by `error`, if there is one.
struct TrainEnd {
  std::exception_ptr error;
  int exit_code = 0;
};

// Writes report_of() the run, the last and the best results of its validations, state, exit code and reason to `path`,
// if there is one. Throws ConfigError if that fails.
void write_train_record(const std::string& path, Run& run, const TrainRecord& record, const TrainEnd& end);

// Files beside the log and the config for those who look at the run later. A run does not end for want of these: what
// cannot be written is a warning.

// {"versions": {...}, "machine": {...}}
nlohmann::ordered_json environment_json();
// environment.json: the same. Removes the graph.json of a run before.
void write_run_environment(const std::string& work_dir);
// graph.json: how many steps were replayed, and of each signature whether it is captured or why not.
void write_graph_coverage(const std::string& work_dir, const GraphTrainer& trainer);

}  // namespace duet
