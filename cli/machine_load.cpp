#include "cli/machine_load.h"
#include <algorithm>
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

namespace {

double allowed_cores() {
  cpu_set_t set;
  double cores = std::max(1U, std::thread::hardware_concurrency());
  if (::sched_getaffinity(0, sizeof set, &set) == 0) cores = std::min<double>(cores, CPU_COUNT(&set));
  // "200000 100000": microseconds of CPU time per period, or "max".
  std::ifstream quota("/sys/fs/cgroup/cpu.max");
  double time = 0, period = 0;
  if (quota >> time >> period && period > 0) cores = std::min(cores, time / period);
  return std::max(cores, 1.0);
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

MachineLoad read_machine_load(int64_t workers) {
  MachineLoad load;
  load.cores = allowed_cores();
  load.running = static_cast<double>(others_running());
  load.threads = at::get_num_threads();
  load.workers = workers;
  load.threads_spin = waits_by_spinning();
  return load;
}

std::vector<std::string> warnings_of(const MachineLoad& load) {
  std::vector<std::string> warnings;
  const auto whole = static_cast<int64_t>(std::floor(load.cores));
  const auto threads = static_cast<double>(load.threads);
  if (threads > load.cores) {
    warnings.push_back(c10::str("ops use ", load.threads, " threads, but this process may use ", load.cores,
                                " cores: set OMP_NUM_THREADS=", whole));
  } else if (load.threads > 1 && load.threads_spin && load.running + threads > load.cores + 1) {
    warnings.push_back(c10::str(
        "other processes keep ", load.running, " of ", load.cores,
        " cores busy: threads of this one that wait for each ",
        "other by spinning can make a step many times as slow; set OMP_NUM_THREADS=1, or OMP_WAIT_POLICY=passive"));
  }
  if (static_cast<double>(load.workers) > 2 * load.cores) {
    warnings.push_back(c10::str("num_workers is ", load.workers, " on ", load.cores,
                                " cores: more than twice as many readers as cores slow each other down"));
  }
  return warnings;
}

void warn_of_machine_load(int64_t workers) {
  for (const std::string& warning : warnings_of(read_machine_load(workers))) log_warning(warning);
}

}  // namespace duet
