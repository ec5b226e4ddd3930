#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace duet {

// What decides how fast threads get on.
struct MachineLoad {
  double cores = 1;     // that this process may use: its affinity and the quota of its cgroup
  double running = 0;   // other threads of the whole machine that want to run
  int64_t threads = 1;  // that ops use
  int64_t workers = 0;  // that read data
  bool threads_spin = true;
};

MachineLoad read_machine_load(int64_t workers);

// What slows a run down, each with the way out. Empty where nothing does.
std::vector<std::string> warnings_of(const MachineLoad& load);

// Logs them.
void warn_of_machine_load(int64_t workers);

}  // namespace duet
