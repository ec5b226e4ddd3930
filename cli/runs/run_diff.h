#pragma once

#include <string>
#include <vector>
#include "cli/runs/run_folder.h"

namespace duet {

// One thing that two runs do not have in common. Empty values: a run does not have it.
struct RunDifference {
  std::string name;
  std::string left, right;
  std::string left_origin, right_origin;  // of config keys: where the value came from
};

struct RunDiff {
  std::vector<RunDifference> config;
  std::vector<RunDifference> environment;
  std::vector<RunDifference> results;  // every metric of both, the equal ones too: "val/accuracy, best"
};

RunDiff diff_runs(const RunFolder& left, const RunFolder& right);

}  // namespace duet
