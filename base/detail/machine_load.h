#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace duet {

// What decides how fast threads get on.
struct MachineLoad {
  double cores = 1;     // that this process may use: its affinity and the quota of its cgroup
  double running = 0;   // other threads of the whole machine that want to run
  int64_t threads = 1;  // that ops use
};

MachineLoad read_machine_load();

// The quota of the cgroup (version 2) that the file `memberships` (/proc/self/cgroup) names and of those above it,
// mounted at `mount` (/sys/fs/cgroup), in cores; infinity without one.
double cgroup_cores(const std::filesystem::path& memberships, const std::filesystem::path& mount);

// What slows threads of ops down, with the way out. Empty where nothing does.
std::string thread_warning(const MachineLoad& load);

// Logs it, once in the life of the process.
void warn_of_threads();

}  // namespace duet
