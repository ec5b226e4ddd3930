#define USE_C10D_GLOO  // without it ProcessGroupGloo.hpp is empty
#include <csignal>
#include <cstdlib>
#include <future>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <ATen/Context.h>
#include <c10/util/StringUtil.h>
#include <signal.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include "base/detail/text.h"
#include "base/device.h"
#include "base/error.h"
#include "distributed/communicator.h"
#include "distributed/detail/c10d_communicator.h"
#include "distributed/detail/connect.h"
#include "distributed/detail/nccl_backend.h"
#include "distributed/detail/rank_error.h"
#include "distributed/detail/rendezvous.h"

namespace duet {

namespace {

using std::chrono::milliseconds;

milliseconds to_milliseconds(double seconds) { return milliseconds(static_cast<int64_t>(seconds * 1000)); }

CommunicatorTimeouts timeouts_of(const ConnectOptions& options) {
  return {to_milliseconds(options.start_timeout), to_milliseconds(options.timeout)};
}

// In a thread of its own: a client waits without end for one that listens there but is no store.
c10::intrusive_ptr<c10d::Store> make_client(const std::string& address, const c10d::TCPStoreOptions& options) {
  using Task = std::packaged_task<c10::intrusive_ptr<c10d::Store>()>;
  const auto task = std::make_shared<Task>([=] { return c10::make_intrusive<c10d::TCPStore>(address, options); });
  auto result = task->get_future();
  std::thread([task] { (*task)(); }).detach();
  // It looks up names on its way, for longer than its timeout where no name server answers.
  if (result.wait_for(options.timeout + std::chrono::seconds(10)) == std::future_status::ready) return result.get();
  throw std::runtime_error("who listens there does not answer");
}

c10::intrusive_ptr<c10d::Store> open_store(const Launch& launch, bool server, milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(launch.master_port);
  options.isServer = server;
  options.waitWorkers = false;
  options.timeout = timeout;
  try {
    if (server) return c10::make_intrusive<c10d::TCPStore>(launch.master_address, options);
    return make_client(launch.master_address, options);
  } catch (const std::exception& error) {
    const std::string place = c10::str(launch.master_address, ":", launch.master_port);
    if (server) {
      throw ConfigError(
          c10::str("[Launch] rank 0 cannot listen at ", place, " (", first_line(error),
                   "), expected a free port of this machine; choose another one with MASTER_PORT or --master-port"));
    }
    throw PeerError(c10::str("[Launch] rank ", launch.rank, " cannot reach ",
                             launch.agent_store ? "the launcher" : "rank 0", " at ", place, " within ",
                             timeout.count() / 1000.0, " s (", first_line(error),
                             "); check that rank 0 runs, and MASTER_ADDR and MASTER_PORT"));
  }
}

c10::intrusive_ptr<c10d::Store> part_of(const c10::intrusive_ptr<c10d::Store>& store, const std::string& prefix) {
  return c10::make_intrusive<c10d::PrefixStore>(prefix, store);
}

bool is_local(const std::string& address) {
  return address == "localhost" || address == "::1" || address.rfind("127.", 0) == 0;
}

c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const Launch& launch, const c10::intrusive_ptr<c10d::Store>& store,
                                                    milliseconds timeout) {
  auto options = c10d::ProcessGroupGloo::Options::create(timeout);
  const char* const interface = std::getenv("GLOO_SOCKET_IFNAME");
  if (interface != nullptr) {
    options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForInterface(interface));
  } else if (is_local(launch.master_address)) {
    options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  } else {
    options->devices.push_back(c10d::ProcessGroupGloo::createDefaultDevice());
  }
  return c10::make_intrusive<c10d::ProcessGroupGloo>(store, static_cast<int>(launch.rank),
                                                     static_cast<int>(launch.world_size), options);
}

// A rank that writes to one that has just ended shall get an error, not be killed silently.
void ignore_broken_pipes() {
  struct sigaction action{};
  if (sigaction(SIGPIPE, nullptr, &action) == 0 && action.sa_handler == SIG_DFL) std::signal(SIGPIPE, SIG_IGN);
}

// Where the ranks of this group write.
struct GroupStore {
  c10::intrusive_ptr<c10d::Store> store;
  std::unique_ptr<PeerWatch> watch;  // null for a world of one
};

GroupStore join_group(const Launch& launch, at::Device device, milliseconds timeout) {
  if (launch.world_size <= 1) return {c10::make_intrusive<c10d::HashStore>(), nullptr};
  const auto store = open_store(launch, launch.holds_store(), timeout);
  const std::string prefix = rendezvous(launch, {device}, store, timeout);
  auto own = part_of(open_store(launch, /*server=*/false, timeout), prefix);
  auto watch = std::make_unique<PeerWatch>(std::move(own), launch.rank, launch.world_size, launch.agent_store ? -1 : 0);
  return {part_of(store, prefix), std::move(watch)};
}

c10::intrusive_ptr<c10d::Backend> make_device_backend(const Launch& launch, at::Device device,
                                                      const c10::intrusive_ptr<c10d::Store>& store,
                                                      milliseconds timeout) {
  // On the CPU threads of its own: a bucket on its way does not delay the host's numbers.
  if (!device.is_cuda()) return make_gloo_backend(launch, store, timeout);
  return make_nccl_backend(store, static_cast<int>(launch.rank), static_cast<int>(launch.world_size), device, timeout);
}

}  // namespace

const OptionFields& ConnectOptions::fields() {
  using O = ConnectOptions;
  return described<O>("Connect", [](const auto& add) {
    const Range seconds{.low = 0, .high = 1e6, .above_low = true};
    add("start_timeout", &O::start_timeout, "seconds for others until the first step")
        .in(seconds)
        .expects("seconds > 0");
    add("timeout", &O::timeout, "and from then on").in(seconds).expects("seconds > 0");
  });
}

const OptionFields& DistributedOptions::fields() {
  using O = DistributedOptions;
  return described<O>("DistributedOptions", [](const auto& add) {
    const char* const bytes = "a number of bytes > 0";
    add("bucket_bytes", &O::bucket_bytes, "bytes of gradients that are summed at once")
        .in(above(0))
        .expects(bytes)
        .keyed("bucket_cap_mb")
        .read_by_hand("number of MiB, above 0, up to 1048576", "25");
    add("first_bucket_bytes", &O::first_bucket_bytes, "bytes of the first such bucket")
        .in(above(0))
        .expects(bytes)
        .keyed("first_bucket_mb")
        .read_by_hand("number of MiB, above 0, up to 1048576", "1");
    add("find_unused_parameters", &O::find_unused_parameters, "a parameter may lack a gradient on some ranks");
    add("broadcast_buffers", &O::broadcast_buffers, "rank 0's buffers for all, at the end of every step");
    add("sync_batchnorm", &O::sync_batchnorm, "batch norm takes its statistics over all ranks");
    add.key("timeout", "seconds, above 0, up to 1e+06", "seconds that a call waits for other ranks", "120");
    add.key("start_timeout", "seconds, above 0, up to 1e+06",
            "seconds that a call waits for other ranks until the first step is through", "300");
  });
}

void DistributedOptions::validate() const {
  require<ConfigError>(communicator != nullptr,
                       "[DistributedOptions] the communicator is null, expected that of "
                       "init_distributed(); leave it out for one process");
  check_options(*this);
}

std::shared_ptr<Communicator> connect(const Launch& launch, at::Device device, const ConnectOptions& options) {
  check_options(options);
  if (launch.world_size <= 1 && !options.force_collectives) return one_process();
  ignore_broken_pipes();
  const milliseconds timeout = to_milliseconds(options.start_timeout);
  GroupStore group = join_group(launch, device, timeout);
  try {
    const auto host = make_gloo_backend(launch, part_of(group.store, "host"), timeout);
    const auto tensors = make_device_backend(launch, device, part_of(group.store, "device"), timeout);
    auto ranks =
        std::make_shared<C10dCommunicator>(host, tensors, std::move(group.watch), timeouts_of(options), device);
    ranks->hold(group.store);
    // Gloo's connecting fails on a rank whose peer is through with it and has left already: nobody goes on before all
    // are.
    ranks->barrier();
    return ranks;
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    const std::string why = group.watch ? group.watch->diagnose(first_line(error)) : first_line(error);
    throw PeerError(c10::str("[Launch] rank ", launch.rank, " cannot connect to the other ranks: ", why,
                             "; if all live, check the network between the machines, and GLOO_SOCKET_IFNAME"));
  }
}

void fail_to_connect(const Launch& launch, const std::exception_ptr& error, const ConnectOptions& options) {
  if (launch.world_size <= 1) return;
  ignore_broken_pipes();
  const milliseconds timeout = to_milliseconds(options.start_timeout);
  try {
    rendezvous(launch, {.failure = packed_error(error)}, open_store(launch, launch.holds_store(), timeout), timeout);
  } catch (const std::exception&) {
    // This rank's own error among them.
  }
}

std::shared_ptr<Communicator> connect(const c10::intrusive_ptr<c10d::ProcessGroup>& group, at::Device device,
                                      const ConnectOptions& options) {
  check_options(options);
  require<ConfigError>(group.defined(), "[Connect] the process group is null; make one, or train in one process");
  if (group->getSize() <= 1 && !options.force_collectives) return one_process();
  ignore_broken_pipes();
  try {
    return std::make_shared<C10dCommunicator>(group->getBackend(c10::DeviceType::CPU), group->getBackend(device.type()),
                                              nullptr, timeouts_of(options), device);
  } catch (const c10::Error& error) {
    throw ConfigError(c10::str("[Connect] the process group has no backend for the CPU and for ", device, " (",
                               first_line(error), "); make it with both, such as \"cpu:gloo,cuda:nccl\""));
  }
}

namespace {

std::mutex current_mutex;
std::weak_ptr<Communicator> current;
bool any_connected = false;

std::shared_ptr<Communicator> made_current(std::shared_ptr<Communicator> ranks) {
  const std::lock_guard lock(current_mutex);
  current = ranks;
  any_connected = any_connected || !ranks->is_single();
  return ranks;
}

}  // namespace

bool were_ranks_connected() {
  const std::lock_guard lock(current_mutex);
  return any_connected;
}

std::shared_ptr<Communicator> current_ranks() {
  const std::lock_guard lock(current_mutex);
  const std::shared_ptr<Communicator> ranks = current.lock();
  return ranks ? ranks : one_process();
}

std::string device_of_rank(const std::string& wish, int64_t local_rank, std::optional<int64_t> visible) {
  const int64_t gpus = visible ? *visible : at::hasCUDA() ? at::detail::getCUDAHooks().deviceCount() : 0;
  const bool is_open = wish == "cuda" || (wish == "auto" && gpus > 0);
  if (!is_open) return wish;
  if (gpus == 1) return "cuda:0";
  if (local_rank < gpus) return c10::str("cuda:", local_rank);
  throw ConfigError(c10::str("[Launch] found local rank ", local_rank, " and ", gpus,
                             " GPUs, expected one for each process of this machine; start fewer here, or train on the "
                             "CPU with device=cpu"));
}

std::shared_ptr<Communicator> init_distributed(const InitOptions& options) {
  const Launch launch = read_launch(options.launch);
  at::Device device = at::kCPU;
  try {
    device = parse_device(launch.world_size == 1 ? options.device : device_of_rank(options.device, launch.local_rank));
    check_options(options.connect);
  } catch (const Error&) {
    fail_to_connect(launch, std::current_exception());
    throw;
  }
  return made_current(connect(launch, device, options.connect));
}

std::shared_ptr<Communicator> init_distributed(const c10::intrusive_ptr<c10d::ProcessGroup>& group, at::Device device,
                                               const ConnectOptions& options) {
  return made_current(connect(group, device, options));
}

}  // namespace duet
