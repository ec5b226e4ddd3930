#include "base/detail/machine_load.h"
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <thread>
#include <ATen/Parallel.h>
#include <c10/util/StringUtil.h>
#include <sched.h>
#include "base/log.h"

namespace duet {

namespace fs = std::filesystem;

namespace {

double allowed_cores() {
  cpu_set_t set;
  double cores = std::max(1U, std::thread::hardware_concurrency());
  if (::sched_getaffinity(0, sizeof set, &set) == 0) cores = std::min<double>(cores, CPU_COUNT(&set));
  return std::max(std::min(cores, cgroup_cores("/proc/self/cgroup", "/sys/fs/cgroup")), 1.0);
}

// In cores, by the files of either version in a folder of cgroups: "200000 100000", microseconds of CPU time per
// period, or "max"; in version 1 a file for each.
double quota_in(const fs::path& folder) {
  std::ifstream both(folder / "cpu.max"), quota(folder / "cpu.cfs_quota_us"), length(folder / "cpu.cfs_period_us");
  double time = 0, period = 0;
  const bool is_limited = (both >> time >> period) || (quota >> time && length >> period);
  return is_limited && time > 0 && period > 0 ? time / period : std::numeric_limits<double>::infinity();
}

// The fewest of some moments: what runs for an instant is in nobody's way. "0.31 0.20 0.11 3/512 4711": of 512 threads
// 3 want to run now, this one among them.
int64_t others_running() {
  int64_t fewest = std::numeric_limits<int64_t>::max();
  for (int moment = 0; moment < 5; ++moment) {
    std::ifstream file("/proc/loadavg");
    std::string skipped;
    int64_t running = 0;
    if (!(file >> skipped >> skipped >> skipped >> running)) return 0;
    fewest = std::min(fewest, std::max<int64_t>(running - 1, 0));
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return fewest;
}

// OpenMP's threads wait by spinning unless they are told not to.
bool waits_by_spinning() {
  const char* const policy = std::getenv("OMP_WAIT_POLICY");
  return policy == nullptr || std::string(policy).find_first_of("pP") != 0;
}

}  // namespace

double cgroup_cores(const fs::path& memberships, const fs::path& mount) {
  double cores = quota_in(mount);
  std::ifstream file(memberships);
  // "0::/user.slice/job" of version 2, "4:cpu,cpuacct:/job" of version 1. In a container the path may be that outside
  // of it, where only the mount itself is there to be read.
  for (std::string line; std::getline(file, line);) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool is_second_version = controllers == ",,";
    if (!is_second_version && controllers.find(",cpu,") == std::string::npos) continue;
    const fs::path root = is_second_version ? mount : mount / "cpu";
    fs::path group = fs::path(line.substr(second + 1)).relative_path();
    for (; !group.empty(); group = group.parent_path()) cores = std::min(cores, quota_in(root / group));
    cores = std::min(cores, quota_in(root));
  }
  return cores;
}

MachineLoad read_machine_load() {
  MachineLoad load;
  load.cores = allowed_cores();
  load.running = static_cast<double>(others_running());
  load.threads = at::get_num_threads();
  load.threads_spin = waits_by_spinning();
  return load;
}

std::string thread_warning(const MachineLoad& load) {
  const auto threads = static_cast<double>(load.threads);
  if (threads > load.cores) {
    return c10::str("ops use ", load.threads, " threads, but this process may use ", load.cores,
                    " cores: set OMP_NUM_THREADS=", std::floor(load.cores));
  }
  if (load.threads == 1 || !load.threads_spin || load.running + threads <= load.cores + 1) return "";
  return c10::str("other processes keep ", load.running, " of ", load.cores,
                  " cores busy: threads of this one that wait for each other by spinning can make a step many times as "
                  "slow; set OMP_NUM_THREADS=1, or OMP_WAIT_POLICY=passive");
}

std::string worker_warning(double cores, int64_t workers) {
  if (static_cast<double>(workers) <= 2 * cores) return "";
  return c10::str("num_workers is ", workers, " on ", cores,
                  " cores: more than twice as many readers as cores slow each other down");
}

void warn_of_threads() {
  static std::atomic<bool> said{false};
  if (said || at::get_num_threads() == 1) return;  // looking takes a moment
  const std::string warning = thread_warning(read_machine_load());
  if (!warning.empty() && !said.exchange(true)) log_warning(warning);
}

void warn_of_workers(int64_t workers) {
  static std::atomic<bool> said{false};
  const std::string warning = said ? "" : worker_warning(allowed_cores(), workers);
  if (!warning.empty() && !said.exchange(true)) log_warning(warning);
}

}  // namespace duet
