#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include "../base/options.h"
#include "communicator.h"

namespace c10d {
class ProcessGroup;
}

namespace duet {

// Which process of a group this one is, and where they meet.
struct Launch {
  int64_t rank = 0, world_size = 1;
  int64_t local_rank = 0, local_world_size = 1;  // among those on this machine
  std::string master_address = "127.0.0.1";      // of the machine of rank 0
  int master_port = 29500;
  bool agent_store = false;             // the launcher holds the store at that address, not rank 0
  int64_t restarts = 0;                 // how often the launcher has restarted the group
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

struct ConnectOptions {
  double start_timeout = 300;  // seconds that a call may wait for other ranks until the first step is through
  double timeout = 120;        // and from then on
  // A world of one gets a communicator that pays for its collectives: to try them, and their capture, alone.
  bool force_collectives = false;

  static const OptionFields& fields();
};

struct InitOptions {
  std::string device = "auto";  // see parse_device; "auto" and "cuda" take the GPU of the local rank
  ConnectOptions connect{};
  LaunchFlags launch{};
};

// Connects to the other processes that the launcher has started; a single process gets one_process(). Trainers whose
// options are made while the result is held belong to this group, on its device; hold it as long as they live.
//
// Throws ConfigError if the launch variables contradict each other or the ranks do not fit together, and PeerError if
// some do not come in time. What keeps one rank from connecting is an error of all.
[[nodiscard]] std::shared_ptr<Communicator> init_distributed(const InitOptions& options = {});

// The same over a process group of your own, which must have a CPU backend, and one for `device`. Errors that another
// rank causes do not name it, and a GPU that waits for a lost one is not freed from that.
[[nodiscard]] std::shared_ptr<Communicator> init_distributed(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                                             at::Device device, const ConnectOptions& options = {});

// The ranks that init_distributed() connected, as long as somebody holds them; else one_process().
std::shared_ptr<Communicator> current_ranks();

// How several processes train one model (data parallel, DDP): each has a part of every batch, gradients are summed.
struct DistributedOptions {
  std::shared_ptr<Communicator> communicator = current_ranks();  // never null
  int64_t bucket_bytes = int64_t{25} << 20;       // of gradients that are summed at once; torch's bucket_cap_mb
  int64_t first_bucket_bytes = int64_t{1} << 20;  // smaller, so that communication starts early
  bool find_unused_parameters = false;            // a parameter may lack a gradient on some ranks: it counts as zero
  bool broadcast_buffers = true;                  // rank 0's buffers for all, at the end of every step

  static const OptionFields& fields();
  // Throws ConfigError naming the field and its range.
  void validate() const;
};

}  // namespace duet
