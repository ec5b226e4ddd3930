#include <map>
#include <sstream>
#include <string>
#include <gtest/gtest.h>
#include "base/error.h"
#include "distributed/detail/connect.h"
#include "tests/support/expect_error.h"

namespace duet {
namespace {

using Environment = std::map<std::string, std::string>;

Launch launch_in(const Environment& environment, const LaunchFlags& flags = {}) {
  return read_launch(flags, [&](const std::string& name) -> std::optional<std::string> {
    const auto found = environment.find(name);
    if (found == environment.end()) return std::nullopt;
    return found->second;
  });
}

void expect_refusal(const std::vector<std::string>& parts, const Environment& environment,
                    const LaunchFlags& flags = {}) {
  expect_error<ConfigError>([&] { launch_in(environment, flags); }, parts);
}

// Variables as real launchers have set them, without those that say nothing about ranks and machines.
Environment captured(const std::string& text) {
  Environment environment;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    const std::size_t equal = word.find('=');
    environment[word.substr(0, equal)] = word.substr(equal + 1);
  }
  return environment;
}

const Environment kTorchrun = captured(R"(
  RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 GROUP_RANK=1 ROLE_RANK=5 ROLE_WORLD_SIZE=8 MASTER_ADDR=node7
  MASTER_PORT=41234 TORCHELASTIC_RESTART_COUNT=2 TORCHELASTIC_MAX_RESTARTS=3 TORCHELASTIC_RUN_ID=night
  TORCHELASTIC_USE_AGENT_STORE=True)");
// SLURM 22.05: the last task of `srun -N 2 --ntasks-per-node 2`.
const Environment kSrun = captured(R"(
  SLURMD_NODENAME=n2 SLURM_CPUS_ON_NODE=4 SLURM_GTIDS=2,3 SLURM_JOBID=1 SLURM_JOB_CPUS_PER_NODE=4(x2) SLURM_JOB_ID=1
  SLURM_JOB_NAME=sh SLURM_JOB_NODELIST=n[1-2] SLURM_JOB_NUM_NODES=2 SLURM_LAUNCH_NODE_IPADDR=127.0.0.1 SLURM_LOCALID=1
  SLURM_NNODES=2 SLURM_NODEID=1 SLURM_NODELIST=n[1-2] SLURM_NPROCS=4 SLURM_NTASKS=4 SLURM_NTASKS_PER_NODE=2
  SLURM_PROCID=3 SLURM_SRUN_COMM_PORT=37143 SLURM_STEPID=0 SLURM_STEP_ID=0 SLURM_STEP_LAUNCHER_PORT=37143
  SLURM_STEP_NODELIST=n[1-2] SLURM_STEP_NUM_NODES=2 SLURM_STEP_NUM_TASKS=4 SLURM_STEP_TASKS_PER_NODE=2(x2)
  SLURM_TASKS_PER_NODE=2(x2) SLURM_TASK_PID=14119)");
// The script of sbatch -n 2.
const Environment kSbatch22 = captured(R"(
  SLURM_GTIDS=0 SLURM_JOBID=4 SLURM_JOB_ID=4 SLURM_JOB_NAME=job.sh SLURM_JOB_NODELIST=vm SLURM_JOB_NUM_NODES=1
  SLURM_LOCALID=0 SLURM_NNODES=1 SLURM_NODEID=0 SLURM_NODELIST=vm SLURM_NPROCS=2 SLURM_NTASKS=2 SLURM_PROCID=0
  SLURM_TASKS_PER_NODE=2 SLURM_TASK_PID=1560)");
// The shell of salloc -n 2.
const Environment kSalloc22 = captured(R"(
  SLURM_JOBID=5 SLURM_JOB_ID=5 SLURM_JOB_NAME=interactive SLURM_JOB_NODELIST=vm SLURM_JOB_NUM_NODES=1 SLURM_NNODES=1
  SLURM_NODELIST=vm SLURM_NPROCS=2 SLURM_NTASKS=2 SLURM_TASKS_PER_NODE=2)");
// The shell of `srun -n 2 --pty sh`.
const Environment kTerminal22 = captured(R"(
  SLURM_GTIDS=0,1 SLURM_JOBID=11 SLURM_JOB_ID=11 SLURM_JOB_NAME=sh SLURM_JOB_NODELIST=vm SLURM_LOCALID=0 SLURM_NODEID=0
  SLURM_NODELIST=vm SLURM_NPROCS=2 SLURM_NTASKS=2 SLURM_PROCID=0 SLURM_PTY_PORT=35575 SLURM_STEPID=0 SLURM_STEP_ID=0
  SLURM_STEP_NODELIST=vm SLURM_STEP_NUM_TASKS=2 SLURM_STEP_TASKS_PER_NODE=2)");
// Open MPI 4.1: `mpirun -n 2`.
const Environment kOpenMpi = captured(R"(
  OMPI_APP_CTX_NUM_PROCS=2 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2 OMPI_COMM_WORLD_NODE_RANK=1
  OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_MCA_ess_base_jobid=1807417345 OMPI_MCA_ess_base_vpid=1
  OMPI_MCA_orte_num_nodes=1 OMPI_UNIVERSE_SIZE=2 PMIX_HOSTNAME=vm PMIX_ID=1807417345.1 PMIX_NAMESPACE=1807417345
  PMIX_RANK=1)");
// MPICH 4.0: `mpiexec -n 2`.
const Environment kMpich = captured(R"(
  HYDI_CONTROL_FD=7 MPIR_CVAR_CH3_INTERFACE_HOSTNAME=vm MPI_LOCALNRANKS=2 MPI_LOCALRANKID=1 PMI_FD=8 PMI_RANK=1
  PMI_SIZE=2)");
// What either shows of SLURM on the second machine of `salloc -N 2`: the step of its daemons.
const Environment kDaemons = captured(R"(
  SLURM_JOB_ID=4 SLURM_JOB_NAME=interactive SLURM_JOB_NODELIST=n[1-2] SLURM_LOCALID=0 SLURM_NODEID=1
  SLURM_NODELIST=n[1-2] SLURM_NTASKS=2 SLURM_NTASKS_PER_NODE=2 SLURM_PROCID=1 SLURM_STEP_ID=0 SLURM_STEP_NODELIST=n2
  SLURM_STEP_NUM_TASKS=2)");

Environment with(Environment base, const Environment& more) {
  for (const auto& [name, value] : more) base[name] = value;
  return base;
}

Environment without(Environment base, const std::string& name) {
  base.erase(name);
  return base;
}

void expect_place(const Launch& launch, int64_t rank, int64_t world_size, int64_t local_rank,
                  int64_t local_world_size) {
  EXPECT_EQ(launch.rank, rank);
  EXPECT_EQ(launch.world_size, world_size);
  EXPECT_EQ(launch.local_rank, local_rank);
  EXPECT_EQ(launch.local_world_size, local_world_size);
}

TEST(Launch, IsASingleProcessWithoutVariables) {
  const Launch launch = launch_in({});
  EXPECT_EQ(launch.rank, 0);
  EXPECT_EQ(launch.world_size, 1);
  EXPECT_EQ(launch.from, "single process");
  EXPECT_EQ(launch_in({{"MASTER_ADDR", "a"}, {"SLURM_JOB_ID", "3"}, {"SLURM_NTASKS", "4"}}).world_size, 1);
}

TEST(Launch, ReadsTorchrun) {
  const Launch launch = launch_in(kTorchrun);
  expect_place(launch, 5, 8, 1, 4);
  EXPECT_EQ(launch.master_address, "node7");
  EXPECT_EQ(launch.master_port, 41234);
  EXPECT_EQ(launch.restarts, 2);
  EXPECT_EQ(launch.run_id, "night");
  EXPECT_TRUE(launch.agent_store);
  EXPECT_EQ(launch.text(), "rank 5 of 8 (torchrun), local rank 1, meeting at node7:41234");
}

TEST(Launch, ReadsAStepOfSrunOnTwoMachines) {
  const Launch launch = launch_in(kSrun);
  expect_place(launch, 3, 4, 1, 1);
  EXPECT_EQ(launch.master_address, "n1");
  EXPECT_EQ(launch.from, "SLURM");
  EXPECT_FALSE(launch.agent_store);
  EXPECT_EQ(launch_in(with(kSrun, {{"SLURM_RESTART_COUNT", "2"}})).restarts, 2);
  // A step is one whatever its job is called, and is counted by its own tasks.
  EXPECT_EQ(launch_in(with(kSrun, {{"SLURM_JOB_NAME", "bash"}})).world_size, 4);
  EXPECT_EQ(launch_in(with(kSrun, {{"SLURM_NTASKS", "8"}})).world_size, 4);
  EXPECT_EQ(launch_in(without(kSrun, "SLURM_STEP_NUM_TASKS")).world_size, 4);
}

// salloc and sbatch start one shell that says it is task 0 of several.
TEST(Launch, TakesTheShellOfAnAllocationForOneProcess) {
  for (const Environment& environment : {kSbatch22, kSalloc22, kTerminal22, without(kSrun, "SLURM_STEP_ID"),
                                         with(kSrun, {{"SLURM_STEP_ID", "4294967290"}})}) {  // an interactive step
    EXPECT_EQ(launch_in(environment).world_size, 1);
    EXPECT_EQ(launch_in(environment).from, "single process");
  }
}

TEST(Launch, FindsTheFirstMachineOfANodeList) {
  const std::vector<std::pair<std::string, std::string>> lists = {{"a", "a"},
                                                                  {"a,b", "a"},
                                                                  {"a[1]", "a1"},
                                                                  {"a[03-05,9],b", "a03"},
                                                                  {"a[7,9-11]", "a7"},
                                                                  {"b,a[1-2]", "b"},
                                                                  {"n-1-[2-3]", "n-1-2"},
                                                                  {"rack-1,rack-2", "rack-1"},
                                                                  {"r[1-2]-gpu", "r1-gpu"},
                                                                  {"a[1-2]b[3-4]", "a1b3"}};
  for (const auto& [list, first] : lists) {
    EXPECT_EQ(launch_in(with(kSrun, {{"SLURM_STEP_NODELIST", list}})).master_address, first) << list;
  }
}

TEST(Launch, GivesEveryJobAPort) {
  const int port = launch_in(kSrun).master_port;
  EXPECT_EQ(launch_in(with(kSrun, {{"SLURM_PROCID", "0"}, {"SLURM_LOCALID", "0"}})).master_port, port);
  EXPECT_NE(launch_in(with(kSrun, {{"SLURM_JOB_ID", "775"}})).master_port, port);
  EXPECT_NE(launch_in(with(kSrun, {{"SLURM_STEP_ID", "1"}})).master_port, port);
  EXPECT_GE(port, 1024);
  EXPECT_LE(port, 65535);
  const int mpi = launch_in(kOpenMpi).master_port;
  EXPECT_NE(launch_in(with(kOpenMpi, {{"PMIX_NAMESPACE", "1807417346"}})).master_port, mpi);
  EXPECT_EQ(launch_in(with(kSrun, {{"MASTER_PORT", "1234"}, {"MASTER_ADDR", "boss"}})).master_port, 1234);
  EXPECT_EQ(launch_in(with(kSrun, {{"MASTER_PORT", "1234"}, {"MASTER_ADDR", "boss"}})).master_address, "boss");
}

TEST(Launch, ReadsMpi) {
  for (const auto& [environment, from] : {std::pair(kOpenMpi, "Open MPI"), {kMpich, "MPICH"}}) {
    const Launch launch = launch_in(environment);
    expect_place(launch, 1, 2, 1, 2);
    EXPECT_EQ(launch.from, from);
    EXPECT_EQ(launch.master_address, "127.0.0.1");
  }
}

TEST(Launch, TrustsFlagsThenTorchrunThenMpiThenSlurm) {
  Environment all = with(with(with(kMpich, kOpenMpi), kSrun), kTorchrun);
  EXPECT_EQ(launch_in(all, {.rank = 1, .world_size = 2}).from, "flags");
  EXPECT_EQ(launch_in(all, {.rank = 1, .world_size = 2, .master_address = "here", .master_port = 7}).text(),
            "rank 1 of 2 (flags), local rank 1, meeting at here:7");
  EXPECT_EQ(launch_in(all).text(), launch_in(kTorchrun).text());
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}) all.erase(name);
  EXPECT_EQ(launch_in(all).from, "Open MPI");
  all.erase("OMPI_COMM_WORLD_RANK");
  EXPECT_EQ(launch_in(all).from, "MPICH");
  all.erase("MPI_LOCALRANKID");  // PMI's variables that srun sets
  EXPECT_EQ(launch_in(all).from, "SLURM");
  all.erase("SLURM_STEP_ID");
  EXPECT_EQ(launch_in(all).from, "MPICH");
  EXPECT_EQ(launch_in(kTorchrun, {.local_rank = 0}).local_rank, 0);
}

TEST(Launch, RefusesRanksThatContradictTheLauncher) {
  const Environment left_over = {{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_ADDR", "localhost"}};
  expect_refusal({"found RANK 0 of WORLD_SIZE 1", "Open MPI calls rank 1 of 2", "unset RANK and WORLD_SIZE"},
                 with(kOpenMpi, left_over));
  expect_refusal({"MPICH calls rank 1 of 2"}, with(kMpich, left_over));
  expect_refusal({"SLURM calls rank 3 of 4"}, with(kSrun, {{"RANK", "2"}, {"WORLD_SIZE", "4"}}));
  // By hand, in agreement, by a script that starts more, by torchrun below it, and with flags.
  expect_place(launch_in(with(kSrun, {{"RANK", "3"}, {"WORLD_SIZE", "4"}})), 3, 4, 0, 1);
  expect_place(launch_in(with(kSrun, {{"RANK", "3"}, {"WORLD_SIZE", "16"}})), 3, 16, 0, 1);
  EXPECT_EQ(launch_in(with(kOpenMpi, kTorchrun)).world_size, 8);
  EXPECT_EQ(launch_in(with(kOpenMpi, left_over), {.rank = 1, .world_size = 3}).world_size, 3);
}

TEST(Launch, NamesWhatIsMissing) {
  expect_refusal({"WORLD_SIZE", "RANK", "torchrun", "unset"}, without(kTorchrun, "RANK"));
  expect_refusal({"RANK without WORLD_SIZE"}, without(kTorchrun, "WORLD_SIZE"));
  expect_refusal({"SLURM_PROCID without SLURM_NTASKS"},
                 without(without(kSrun, "SLURM_NTASKS"), "SLURM_STEP_NUM_TASKS"));
  expect_refusal({"OMPI_COMM_WORLD_RANK without OMPI_COMM_WORLD_SIZE"}, without(kOpenMpi, "OMPI_COMM_WORLD_SIZE"));
  expect_refusal({"PMI_RANK without PMI_SIZE"}, without(kMpich, "PMI_SIZE"));
  expect_refusal({"--rank without --world-size"}, {}, {.rank = 1});
  expect_refusal({"--world-size without --rank"}, kTorchrun, {.world_size = 4});
}

TEST(Launch, RefusesWhatIsNoNumberOrContradictsItself) {
  const std::vector<std::pair<Environment, std::vector<std::string>>> cases = {
      {{{"RANK", "five"}}, {"RANK", "'five'", "integer"}},
      {{{"RANK", ""}}, {"RANK", "''"}},
      {{{"RANK", "-1"}}, {"RANK", "'-1'"}},
      {{{"WORLD_SIZE", "0"}}, {"WORLD_SIZE", "'0'"}},
      {{{"WORLD_SIZE", "2x"}}, {"WORLD_SIZE", "'2x'"}},
      {{{"MASTER_PORT", "70000"}}, {"MASTER_PORT", "'70000'", "65535"}},
      {{{"RANK", "8"}}, {"rank 8 of 8"}},
      {{{"LOCAL_RANK", "6"}, {"LOCAL_WORLD_SIZE", "8"}}, {"rank 5 of 8 and local rank 6"}},
      {{{"LOCAL_RANK", "4"}}, {"local rank 4 of 4"}},
      {{{"MASTER_ADDR", ""}}, {"MASTER_ADDR", "empty"}}};
  for (const auto& [change, parts] : cases) expect_refusal(parts, with(kTorchrun, change));
  expect_refusal({"rank 2 of 2", "flags"}, {}, {.rank = 2, .world_size = 2});
  expect_refusal({"--rank -1"}, {}, {.rank = -1, .world_size = 2});
  expect_refusal({"--master-port 0"}, {}, {.rank = 0, .world_size = 2, .master_port = 0});
}

// Its launchers start their daemons with srun, which gives the ranks SLURM's variables of a daemon.
TEST(Launch, MpiInAnAllocation) {
  for (const Environment& mpi : {with(kOpenMpi, {{"OMPI_COMM_WORLD_RANK", "3"}, {"OMPI_COMM_WORLD_SIZE", "4"}}),
                                 with(kMpich, {{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}})}) {
    const Environment ranks = with(kDaemons, mpi);
    const Launch launch = launch_in(ranks);
    expect_place(launch, 3, 4, 1, 2);
    EXPECT_EQ(launch.master_address, "n1");
    EXPECT_NE(launch.master_port, launch_in(with(ranks, {{"SLURM_JOB_ID", "5"}})).master_port);
  }
}

// srun --mpi=pmi2 sets PMI's variables itself, and a shell below it hands on old ones.
TEST(Launch, PmiOfSrunIsSrun) {
  EXPECT_EQ(launch_in(with(kSrun, {{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}})).text(), launch_in(kSrun).text());
}

TEST(Launch, MpiOnSeveralMachinesNeedsAnAddress) {
  for (const Environment& mpi : {with(kOpenMpi, {{"OMPI_COMM_WORLD_SIZE", "4"}}), with(kMpich, {{"PMI_SIZE", "4"}})}) {
    expect_refusal({"2 of 4 processes", "no MASTER_ADDR", "mpirun -x"}, mpi);
    EXPECT_EQ(launch_in(with(mpi, {{"MASTER_ADDR", "boss"}})).master_address, "boss");
    EXPECT_EQ(launch_in(mpi, {.master_address = "boss"}).master_address, "boss");
  }
}

}  // namespace
}  // namespace duet
