#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>
#include <nlohmann/json_fwd.hpp>
#include "cli/measure.h"
#include "graph/graph_options.h"

namespace duet {

struct Run;

// What `--json` of train and compare says about one mode.
struct ModeReport {
  std::string mode;
  int64_t steps = 0;                 // finished, those before a resume included
  Measurements measured;             // of this process
  std::optional<double> final_loss;  // of the latest step, which a finished run took from its checkpoint
  std::string weights_hash;
  int64_t peak_bytes = 0;
  int64_t eager_steps = 0, replays = 0;
  std::vector<SignatureReport> fallbacks;  // signatures that run eager
};

// Reads counters, weights and captures of a run that has ended.
ModeReport make_report(Run& run, const std::string& mode, Measurements measured);

nlohmann::ordered_json to_json(const ModeReport& report);

// Fails early with ConfigError if `path` cannot be written; an empty path is fine.
void check_writable(const std::string& path);
// Writes `json` to `path`, if there is one. Throws ConfigError if that fails.
void write_json(const std::string& path, const nlohmann::ordered_json& json);

// Says that `command` was stopped by a signal (see StopSignals) with nothing to save. Returns its exit code: 128 and
// the number of the signal, as shells have it.
int report_stop(const std::string& command);

// "1.25 GiB"
std::string readable_bytes(int64_t bytes);

}  // namespace duet
