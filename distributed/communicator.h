#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>
#include <ATen/core/Tensor.h>
#include "../base/options.h"

namespace c10d {
class ProcessGroup;
}

namespace duet {

// The processes that train one model together, as one of them sees them. Each has a rank in [0, world_size). All make
// the same calls in the same order.
//
// What waits for others throws PeerError when one of them is lost, has failed, or does not answer in time; then this
// communicator is at its end.
// Each of its many members is one kind of exchange between processes.
class Communicator {
 public:
  Communicator();
  virtual ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  virtual int64_t rank() const = 0;
  virtual int64_t world_size() const = 0;
  bool is_main() const { return rank() == 0; }
  // Whether there is nobody to sum with, agree with or wait for: see one_process().
  virtual bool is_single() const { return false; }
  // What the tensors of sums and broadcasts lie on.
  virtual at::Device device() const { return at::kCPU; }

  // On the host, between steps: what every rank gave, by rank. `of_one_size`: as many bytes everywhere.
  virtual std::vector<std::string> all_gather(const std::string& bytes, bool of_one_size = false) = 0;
  // The report of each rank, by rank. One exchange for reports of up to 56 bytes, two for larger ones.
  template <class Report>
  std::vector<Report> gather(const Report& report);
  // What rank `root` gave.
  virtual std::string broadcast(const std::string& bytes, int64_t root) = 0;
  std::string broadcast(const std::string& bytes) { return broadcast(bytes, 0); }
  void barrier() { gather(int64_t{0}); }

  // On tensors, contiguous and on the device that trains: starts to replace the values by their sum over the ranks, or
  // by those of rank `root`, and returns. finish() waits for it (on a GPU, the current stream does); until then nobody
  // touches the values. Several may be on their way; all ranks start them in the same order.
  void start_sum(const at::Tensor& values);
  void start_broadcast(const at::Tensor& values, int64_t root);
  void finish(const at::Tensor& values);

  // Bytes of all sums and broadcasts started so far, this rank's contribution.
  int64_t bytes_started() const { return bytes_started_; }

  // What this process does now, for the others' message if they lose it. `phase` is a literal.
  virtual void report(int64_t step, const char* phase) = 0;
  // The same within the step that was reported last.
  virtual void report(const char* /*phase*/) {}
  // True: waits end after DistributedOptions::timeout; false: after start_timeout.
  virtual void set_running(bool /*running*/) {}
  // True: waits end after start_timeout until this is called with `false`: a rank may be at work that the others do not
  // see.
  virtual void use_start_timeout(bool /*patient*/) {}
  // Rank 0 says that it does something that the others wait for, such as writing a checkpoint: as long as it lives,
  // those who use the start timeout wait for it, however long it takes. Over with its next call here that waits for
  // others.
  virtual void announce_main_work() {}
  // Tells the others that this process ends with an error, and why. Every later call here throws PeerError.
  virtual void fail(const std::string& reason) = 0;

  // To run one step several times and compare: after record_collectives() its sums and broadcasts are kept; after
  // replay_collectives() they are given out again in the same order, and nothing goes to the other ranks; after
  // resume_collectives() all is as usual.
  void record_collectives();
  void replay_collectives();
  void resume_collectives();
  // Whether every contribution since replay_collectives() had the bits of the kept one.
  bool repeated_exactly() const { return repeated_exactly_; }

  // A number that tensor operators name this communicator by (collective_ops.h).
  int64_t id() const { return id_; }
  // Throws ConfigError if there is none of this number any more.
  static Communicator& find(int64_t id);

 protected:
  virtual void do_start_sum(const at::Tensor& values) = 0;
  virtual void do_start_broadcast(const at::Tensor& values, int64_t root) = 0;
  virtual void do_finish(const at::Tensor& values) = 0;

 private:
  enum class Mode { kLive, kKeep, kRepeat };
  struct Kept {
    at::Tensor given, taken;
  };
  template <class Start>
  void start(const at::Tensor& values, Start start);

  int64_t id_;
  int64_t bytes_started_ = 0;
  Mode mode_ = Mode::kLive;
  std::vector<Kept> kept_;
  std::size_t repeated_ = 0;  // started since replay_collectives()
  bool repeated_exactly_ = true;
  std::vector<std::pair<const void*, std::size_t>> open_;  // memory of what is on its way, and its place in kept_
};

template <class Report>
std::vector<Report> Communicator::gather(const Report& report) {
  static_assert(std::is_trivially_copyable_v<Report>, "what is gathered is copied byte by byte");
  const std::string bytes(reinterpret_cast<const char*>(&report), sizeof(Report));
  std::vector<Report> all;
  for (const std::string& said : all_gather(bytes, /*of_one_size=*/true)) {
    std::memcpy(static_cast<void*>(&all.emplace_back()), said.data(), sizeof(Report));
  }
  return all;
}

// A world of one: gathers give what they got, and all else does nothing.
std::shared_ptr<Communicator> one_process();

// Runs `call` on every rank and waits for all. If it throws on some, it throws on all: there its own error, elsewhere
// one of the same type that names the first such rank.
void run_on_all_ranks(Communicator& ranks, const std::function<void()>& call);

// Runs `call` on rank 0 alone; the others wait, and learn of its error.
void run_on_main(Communicator& ranks, const std::function<void()>& call);

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
  // Batch norm takes its statistics over the batches of all ranks, in the place of convert_sync_batchnorm(model). All
  // ranks then need as many micro-batches in each step.
  bool sync_batchnorm = false;

  static const OptionFields& fields();
  // Throws ConfigError naming the field and its range.
  void validate() const;
};

}  // namespace duet
