#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace duet {

// Which process of a group this one is, and where they meet.
struct Launch {
  int64_t rank = 0, world_size = 1;
  int64_t local_rank = 0, local_world_size = 1;  // among those on this machine
  std::string master_address = "127.0.0.1";      // of the machine of rank 0
  int master_port = 29500;
  bool agent_store = false;             // the launcher holds the store at that address, not rank 0
  int64_t restarts = 0;                 // how often the launcher has started the group anew
  std::string run_id{};                 // the launcher's name of the run; empty: it has none
  std::string from = "single process";  // what said so: "flags", "torchrun", "SLURM", "Open MPI", "MPICH"

  // Whether the others meet in a store of this process.
  bool holds_store() const { return rank == 0 && !agent_store; }

  // "rank 1 of 4 (torchrun), local rank 1, meeting at 10.0.0.1:29500"
  std::string text() const;
};

// Flags of the command line; what is not given comes from the environment.
struct LaunchFlags {
  std::optional<int64_t> rank{}, world_size{}, local_rank{};
  std::optional<std::string> master_address{};
  std::optional<int> master_port{};
};

// Reads, in this order of trust: the flags; torchrun's variables (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR,
// MASTER_PORT, TORCHELASTIC_*); Open MPI's (OMPI_COMM_WORLD_*); MPICH's (PMI_*, MPI_LOCALRANKID); SLURM's
// (SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID, SLURM_STEP_NODELIST), unless the shell of an allocation without
// srun; PMI_* alone; else a single process.
//
// Throws ConfigError naming the variables if some are missing, are no numbers, or contradict each other.
Launch read_launch(const LaunchFlags& flags = {});
// The same from variables of your own: `variable(name)` gives a value or nothing.
Launch read_launch(const LaunchFlags& flags,
                   const std::function<std::optional<std::string>(const std::string&)>& variable);

}  // namespace duet
