#include "base/detail/machine_load.h"
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
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

}  // namespace

// "0::/user.slice/job" names the group, and "200000 100000" in its cpu.max microseconds of CPU time per period. In a
// container the path may be that outside of it, where only the mount itself is there to be read.
double cgroup_cores(const fs::path& memberships, const fs::path& mount) {
  std::ifstream file(memberships);
  std::string line;
  while (std::getline(file, line) && !line.starts_with("0::/")) continue;
  double cores = std::numeric_limits<double>::infinity();
  fs::path group = line.starts_with("0::/") ? fs::path(line.substr(4)) : fs::path();
  for (;; group = group.parent_path()) {
    std::ifstream quota(mount / group / "cpu.max");
    double time = 0, period = 0;
    if (quota >> time >> period && time > 0 && period > 0) cores = std::min(cores, time / period);
    if (group.empty()) return cores;
  }
}

MachineLoad read_machine_load() {
  return {.cores = allowed_cores(), .running = static_cast<double>(others_running()), .threads = at::get_num_threads()};
}

std::string thread_warning(const MachineLoad& load) {
  const auto threads = static_cast<double>(load.threads);
  const bool fits = load.running + threads <= load.cores + 1;
  if (load.threads == 1 || (threads <= load.cores && fits)) return "";
  return c10::str("ops use ", load.threads, " threads, on ", load.cores, " cores of which other processes keep ",
                  load.running, " busy: threads that wait for each other by spinning can make a step many times as ",
                  "slow; set OMP_NUM_THREADS=", std::max(std::floor(load.cores - load.running), 1.0));
}

void warn_of_threads() {
  static std::atomic<bool> said{false};
  const char* const policy = std::getenv("OMP_WAIT_POLICY");
  const bool is_passive = policy != nullptr && std::string(policy).find_first_of("pP") == 0;  // nothing spins
  if (said || is_passive || at::get_num_threads() == 1) return;
  const std::string warning = thread_warning(read_machine_load());
  if (!warning.empty() && !said.exchange(true)) log_warning(warning);
}

}  // namespace duet
