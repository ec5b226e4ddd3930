#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <c10/util/StringUtil.h>
#include <unistd.h>
#include "base/detail/text.h"
#include "base/error.h"
#include "distributed/detail/connect.h"

namespace duet {

namespace {

using Variables = std::function<std::optional<std::string>(const std::string&)>;

int64_t number_of(const std::string& name, const std::string& text, int64_t low, int64_t high) {
  const std::optional<int64_t> value = parse_number<int64_t>(text);
  require<ConfigError>(value && *value >= low && *value <= high,
                       c10::str("[Launch] found ", name, " '", text, "', expected an integer from ", low, " to ", high,
                                "; correct it, or unset the launch variables to train in one process"));
  return *value;
}

constexpr int64_t kMostRanks = 1 << 20;

struct Names {
  const char* launcher;
  const char *rank, *world_size, *local_rank, *local_world_size;
};

constexpr Names kTorchrun = {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
constexpr Names kSlurm = {"SLURM", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"};
constexpr const char* kSlurmStepSize = "SLURM_STEP_NUM_TASKS";
constexpr Names kOpenMpi = {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                            "OMPI_COMM_WORLD_LOCAL_SIZE"};
constexpr Names kMpich = {"MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"};

// Whether this launcher started the process. RANK or WORLD_SIZE alone are a mistake that must not pass for one process.
bool present(const Names& names, const Variables& variable) {
  return variable(names.rank).has_value() ||
         (names.launcher == kTorchrun.launcher && variable(names.world_size).has_value());
}

void read_ranks(const Names& names, const Variables& variable, Launch& launch) {
  const auto need = [&](const char* name, const char* other) {
    const std::optional<std::string> text = variable(name);
    require<ConfigError>(text.has_value(),
                         c10::str("[Launch] found ", other, " without ", name, ", expected both from ", names.launcher,
                                  "; set ", name, ", or unset ", other, " to train in one process"));
    return *text;
  };
  // In an allocation of several tasks SLURM_NTASKS may be theirs while the step has fewer.
  const bool of_step = names.launcher == kSlurm.launcher && variable(kSlurmStepSize);
  const char* const world_size = of_step ? kSlurmStepSize : names.world_size;
  launch.from = names.launcher;
  launch.world_size = number_of(world_size, need(world_size, names.rank), 1, kMostRanks);
  launch.rank = number_of(names.rank, need(names.rank, names.world_size), 0, kMostRanks);
  if (const auto text = variable(names.local_rank))
    launch.local_rank = number_of(names.local_rank, *text, 0, kMostRanks);
  if (const auto text = variable(names.local_world_size); text && names.launcher != kSlurm.launcher) {
    launch.local_world_size = number_of(names.local_world_size, *text, 1, kMostRanks);
  }
}

// The first machine of SLURM's list, such as "gpu[03-05,9],cpu1" or "rack[1-2]node[07,09]".
std::string first_host(const std::string& list) {
  std::string host;
  for (std::size_t i = 0; i < list.size() && list[i] != ','; ++i) {
    if (list[i] != '[') {
      host += list[i];
      continue;
    }
    const std::size_t close = std::min(list.find(']', i), list.size());
    const std::size_t end = std::min(list.find_first_of("-,", i), close);
    host += list.substr(i + 1, end - i - 1);
    i = close;
  }
  return host;
}

// Not the shell or script of an allocation, which has a special number for its step, or none. A shell behind
// srun --pty says it is task 0 of several too, but nobody starts the program for the others.
bool is_srun_step(const Variables& variable) {
  const std::optional<std::string> step = variable("SLURM_STEP_ID");
  if (!step || variable("SLURM_PTY_PORT")) return false;
  constexpr const char* kSpecial[] = {"4294967290", "4294967291", "4294967292", "4294967293", "4294967294"};
  return std::find(std::begin(kSpecial), std::end(kSpecial), *step) == std::end(kSpecial);
}

// MPI's launchers start their daemons with srun, and mpirun may run in a step: its ranks then see SLURM's variables of
// something else. PMI's may come from srun itself; MPICH's own launcher says more.
const Names* launcher_of(const Variables& variable) {
  const bool by_hydra = variable(kMpich.local_rank).has_value();
  const bool by_srun = is_srun_step(variable);
  if (present(kTorchrun, variable)) return &kTorchrun;
  if (present(kOpenMpi, variable)) return &kOpenMpi;
  if (by_hydra && present(kMpich, variable)) return &kMpich;
  if (by_srun && present(kSlurm, variable)) return &kSlurm;
  return present(kMpich, variable) ? &kMpich : nullptr;
}

// RANK and WORLD_SIZE that torchrun has not set may be left over in a shell or an image: every process would train by
// itself. A script that starts more processes than its launcher, with numbers of its own, may.
void refuse_left_over(const Variables& variable, const Launch& launch) {
  if (launch.from != kTorchrun.launcher || variable("TORCHELASTIC_RUN_ID")) return;
  Variables without_torchrun = [&](const std::string& name) {
    return name == kTorchrun.rank || name == kTorchrun.world_size ? std::nullopt : variable(name);
  };
  const Names* const names = launcher_of(without_torchrun);
  if (names == nullptr || !variable(names->world_size)) return;
  Launch other;
  read_ranks(*names, without_torchrun, other);
  const bool same_size = other.world_size == launch.world_size;
  if (other.world_size < launch.world_size || (same_size && other.rank == launch.rank)) return;
  throw ConfigError(c10::str("[Launch] found RANK ", launch.rank, " of WORLD_SIZE ", launch.world_size,
                             " in a process that ", names->launcher, " calls rank ", other.rank, " of ",
                             other.world_size,
                             ", expected one answer; unset RANK and WORLD_SIZE, or give --rank and --world-size"));
}

// The same number on every rank of a job, another for another job: two of them may share a machine.
int port_of(const std::string& job) {
  uint32_t hash = 2166136261u;  // FNV-1a
  for (const char c : job) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  return 20000 + static_cast<int>(hash % 10000);
}

// SLURM names its machines, torchrun its address; MPI's launchers only say how many processes are on this machine.
bool lacks_address(const Names* names, const Variables& variable, const Launch& launch) {
  return (names == &kOpenMpi || names == &kMpich) && variable(names->local_world_size) &&
         launch.local_world_size < launch.world_size;
}

void read_address(const Names* names, const Variables& variable, Launch& launch) {
  const auto first_of = [&](std::initializer_list<const char*> variables) {
    for (const char* name : variables) {
      if (const auto text = variable(name)) return *text;
    }
    return std::string();
  };
  const bool by_slurm = names == &kSlurm;
  // A step of mpirun's daemons leaves out the machine that it was called on, which has rank 0.
  const std::string hosts = by_slurm ? first_of({"SLURM_STEP_NODELIST", "SLURM_NODELIST", "SLURM_JOB_NODELIST"})
                                     : first_of({"SLURM_JOB_NODELIST"});
  if ((by_slurm && !hosts.empty()) || lacks_address(names, variable, launch)) launch.master_address = first_host(hosts);
  // Several steps may run in one job of SLURM's, and several mpiruns.
  std::string part = first_of({"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID"});
  if (by_slurm || part.empty()) part = first_of({"SLURM_STEP_ID"});  // MPICH's launcher has started a step
  const std::string job = first_of({"SLURM_JOB_ID"}) + "." + part;
  if (launch.from != kTorchrun.launcher && job != ".") {
    launch.master_port = port_of(job);
    launch.run_id = job;
  }
  if (const auto text = variable("MASTER_ADDR")) launch.master_address = *text;
  if (const auto text = variable("MASTER_PORT"))
    launch.master_port = static_cast<int>(number_of("MASTER_PORT", *text, 1, 65535));
}

void read_elastic(const Variables& variable, Launch& launch) {
  if (const auto text = variable("TORCHELASTIC_RESTART_COUNT")) {
    launch.restarts = number_of("TORCHELASTIC_RESTART_COUNT", *text, 0, kMostRanks);
  } else if (const auto slurm = variable("SLURM_RESTART_COUNT"); slurm && launch.from == kSlurm.launcher) {
    launch.restarts = number_of("SLURM_RESTART_COUNT", *slurm, 0, kMostRanks);
  }
  if (const auto text = variable("TORCHELASTIC_RUN_ID"); text && launch.from == kTorchrun.launcher) {
    // Without --standalone or --rdzv-id all of torchrun's runs are called "none": the launcher's process tells them
    // apart.
    launch.run_id = *text == "none" ? c10::str("none.", getppid()) : *text;
  }
  launch.agent_store =
      launch.from == kTorchrun.launcher && variable("TORCHELASTIC_USE_AGENT_STORE").value_or("") == "True";
}

void check(const Launch& launch) {
  const int64_t rank = launch.rank, size = launch.world_size;
  const int64_t local_rank = launch.local_rank, local_size = launch.local_world_size;
  require<ConfigError>(rank < size && local_rank <= rank && (local_size <= 1 || local_rank < local_size),
                       c10::str("[Launch] found rank ", rank, " of ", size, " and local rank ", local_rank, " of ",
                                local_size, " on this machine (", launch.from,
                                "), expected each below its number, and the local rank not above the rank; correct "
                                "them"));
  require<ConfigError>(
      launch.master_port >= 1 && launch.master_port <= 65535,
      c10::str("[Launch] found --master-port ", launch.master_port, ", expected a port from 1 to 65535; correct it"));
  const bool by_mpi = launch.from == kOpenMpi.launcher || launch.from == kMpich.launcher;
  require<ConfigError>(!launch.master_address.empty() || !by_mpi,
                       c10::str("[Launch] found ", local_size, " of ", size, " processes (", launch.from,
                                ") on this machine and no MASTER_ADDR, expected an address of rank 0's machine that "
                                "all can reach; set MASTER_ADDR (mpirun -x MASTER_ADDR=HOST), or use --master-addr"));
  require<ConfigError>(!launch.master_address.empty(),
                       "[Launch] found an empty MASTER_ADDR, expected the machine of rank 0; set it, or unset it");
}

}  // namespace

std::string Launch::text() const {
  return c10::str("rank ", rank, " of ", world_size, " (", from, "), local rank ", local_rank, ", meeting at ",
                  master_address, ":", master_port);
}

Launch read_launch(const LaunchFlags& flags, const Variables& variable) {
  Launch launch;
  const Names* names = nullptr;
  if (flags.rank || flags.world_size) {
    require<ConfigError>(
        flags.rank && flags.world_size,
        c10::str("[Launch] found ", flags.rank ? "--rank without --world-size" : "--world-size without --rank",
                 ", expected both or none; add the other"));
    launch.from = "flags";
    launch.rank = *flags.rank;
    launch.world_size = *flags.world_size;
    launch.local_rank = flags.local_rank.value_or(launch.rank);
    require<ConfigError>(launch.world_size >= 1 && launch.rank >= 0,
                         c10::str("[Launch] found --rank ", launch.rank, " --world-size ", launch.world_size,
                                  ", expected a rank from 0 and a size from 1; correct them"));
  } else {
    names = launcher_of(variable);
    if (names != nullptr) read_ranks(*names, variable, launch);
    refuse_left_over(variable, launch);
    if (flags.local_rank) launch.local_rank = *flags.local_rank;
  }
  read_address(names, variable, launch);
  read_elastic(variable, launch);
  if (flags.master_address) launch.master_address = *flags.master_address;
  if (flags.master_port) launch.master_port = *flags.master_port;
  check(launch);
  return launch;
}

Launch read_launch(const LaunchFlags& flags) {
  const auto variable = [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  };
  // Whatever a shell behind srun --pty starts inherits its variables, another srun too; that one's tasks have no
  // terminal.
  const bool is_task = variable("SLURM_TASK_PID") == std::to_string(::getpid()) || ::isatty(STDIN_FILENO) == 0;
  return read_launch(flags, [&](const std::string& name) -> std::optional<std::string> {
    if (is_task && name == "SLURM_PTY_PORT") return std::nullopt;
    return variable(name);
  });
}

}  // namespace duet
