#include <duet/core/comm/connect.h>

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <duet/core/comm/c10d_communicator.h>
#include <duet/core/comm/nccl_backend.h>
#include <duet/core/error.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <signal.h>

#include <cmath>
#include <csignal>
#include <cstdlib>
#include <future>
#include <stdexcept>
#include <thread>

namespace duet {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

milliseconds to_milliseconds(double seconds) { return milliseconds(static_cast<int64_t>(seconds * 1000)); }

CommunicatorTimeouts timeouts_of(const ConnectOptions& options) {
  return {to_milliseconds(options.start_timeout), to_milliseconds(options.timeout)};
}

std::string first_line(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  const std::string text = torch_error != nullptr ? torch_error->what_without_backtrace() : error.what();
  return text.substr(0, text.find('\n'));
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
    c10::intrusive_ptr<c10d::Store> store;
    if (server) {
      store = c10::make_intrusive<c10d::TCPStore>(launch.master_address, options);
    } else {
      store = make_client(launch.master_address, options);
    }
    // A launcher's store outlives a restart of the group: what was said before must not be heard again.
    return c10::make_intrusive<c10d::PrefixStore>("duet/" + std::to_string(launch.restarts), store);
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

std::vector<uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

std::string read(c10d::Store& store, const std::string& key) {
  const std::vector<uint8_t> bytes = store.get(key);
  return {bytes.begin(), bytes.end()};
}

// Every rank says hello and waits for the others; who finds a contradiction tells all.
void say_hello(const Launch& launch, at::Device device, c10d::Store& store, milliseconds timeout) {
  const auto refuse = [&](const std::string& text) {
    store.set("refused", bytes_of(text));
    throw ConfigError(text);
  };
  const std::string key = "hello/" + std::to_string(launch.rank);
  if (store.add(key + "/count", 1) > 1) {
    refuse(c10::str("[Launch] two processes say they are rank ", launch.rank, " of ", launch.world_size, " at ",
                    launch.master_address, ":", launch.master_port,
                    ", expected each rank once; give every process a rank of its own"));
  }
  const std::string kind = c10::DeviceTypeName(device.type(), /*lower_case=*/true);
  store.set("device/" + std::to_string(launch.rank), bytes_of(kind));
  store.set(key, bytes_of(std::to_string(launch.world_size)));
  const auto deadline = Clock::now() + timeout;
  for (int64_t rank = 0; rank < launch.world_size; ++rank) {
    const std::string other = "hello/" + std::to_string(rank);
    while (!store.check({other})) {
      if (store.check({"refused"})) throw ConfigError(read(store, "refused"));
      if (store.check({"late"})) throw PeerError(read(store, "late"));
      if (Clock::now() > deadline) {
        const std::string text =
            c10::str("[Launch] rank ", rank, " of ", launch.world_size, " did not come to ", launch.master_address, ":",
                     launch.master_port, " within ", timeout.count() / 1000.0,
                     " s; check that it was started, or raise the start timeout");
        store.set("late", bytes_of(text));
        throw PeerError(text);
      }
      std::this_thread::sleep_for(milliseconds(10));
    }
    const std::string size = read(store, other);
    if (size != std::to_string(launch.world_size)) {
      refuse(c10::str("[Launch] rank ", rank, " was started for ", size, " processes and rank ", launch.rank, " for ",
                      launch.world_size, ", expected the same number; start them with one command"));
    }
    const std::string there = read(store, "device/" + std::to_string(rank));
    if (there != kind) {
      refuse(c10::str("[Launch] rank ", rank, " trains on ", there, " and rank ", launch.rank, " on ", kind,
                      ", expected the same kind of device; set it to one that all of them have"));
    }
  }
  if (store.check({"refused"})) throw ConfigError(read(store, "refused"));
}

// A rank that holds the store leaves last: the others read there what is wrong.
void meet(const Launch& launch, at::Device device, c10d::Store& store, bool server, milliseconds timeout) {
  try {
    say_hello(launch, device, store, timeout);
  } catch (const Error&) {
    if (server) std::this_thread::sleep_for(milliseconds(500));
    throw;
  } catch (const std::exception& error) {
    throw PeerError(c10::str("[Launch] rank ", launch.rank, " lost ", launch.agent_store ? "the launcher" : "rank 0",
                             " at ", launch.master_address, ":", launch.master_port, " while the ranks met (",
                             first_line(error), "); see its own error"));
  }
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

// A rank that writes to one that has just ended shall get an error, not be killed without a word.
void ignore_broken_pipes() {
  struct sigaction action {};
  if (sigaction(SIGPIPE, nullptr, &action) == 0 && action.sa_handler == SIG_DFL) std::signal(SIGPIPE, SIG_IGN);
}

}  // namespace

void ConnectOptions::validate() const {
  const auto check = [](const char* field, double value) {
    if (value > 0 && std::isfinite(value) && value <= 1e6) return;
    throw ConfigError(c10::str("[Connect] ", field, " is ", value, ", expected seconds > 0"));
  };
  check("start_timeout", start_timeout);
  check("timeout", timeout);
}

std::shared_ptr<Communicator> connect(const Launch& launch, at::Device device, const ConnectOptions& options) {
  options.validate();
  if (launch.world_size <= 1) return nullptr;
  ignore_broken_pipes();
  const milliseconds timeout = to_milliseconds(options.start_timeout);
  const bool server = launch.rank == 0 && !launch.agent_store;
  const auto store = open_store(launch, server, timeout);
  meet(launch, device, *store, server, timeout);
  auto watch = std::make_unique<PeerWatch>(open_store(launch, /*server=*/false, timeout), launch.rank,
                                           launch.world_size, launch.agent_store ? -1 : 0);
  try {
    const auto host = make_gloo_backend(launch, c10::make_intrusive<c10d::PrefixStore>("host", store), timeout);
    c10::intrusive_ptr<c10d::Backend> tensors;
    if (device.is_cuda()) {
      tensors = make_nccl_backend(c10::make_intrusive<c10d::PrefixStore>("device", store),
                                  static_cast<int>(launch.rank), static_cast<int>(launch.world_size), device, timeout);
    } else {  // threads of its own: a bucket on its way does not delay the host's numbers
      tensors = make_gloo_backend(launch, c10::make_intrusive<c10d::PrefixStore>("device", store), timeout);
    }
    // The store lives as long as the communicator: rank 0 holds it.
    struct Owner {
      c10::intrusive_ptr<c10d::Store> store;
      std::unique_ptr<C10dCommunicator> communicator;
    };
    auto owner = std::make_shared<Owner>();
    owner->store = store;
    owner->communicator = std::make_unique<C10dCommunicator>(host, tensors, std::move(watch), timeouts_of(options));
    return {owner, owner->communicator.get()};
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    const std::string why = watch ? watch->diagnose(first_line(error)) : first_line(error);
    throw PeerError(c10::str("[Launch] rank ", launch.rank, " cannot connect to the other ranks: ", why,
                             "; if all live, check the network between the machines, and GLOO_SOCKET_IFNAME"));
  }
}

std::shared_ptr<Communicator> connect(const c10::intrusive_ptr<c10d::ProcessGroup>& group, at::Device device,
                                      const ConnectOptions& options) {
  options.validate();
  require<ConfigError>(group.defined(), "[Connect] the process group is null; make one, or train in one process");
  if (group->getSize() <= 1) return nullptr;
  ignore_broken_pipes();
  try {
    return std::make_shared<C10dCommunicator>(group->getBackend(c10::DeviceType::CPU), group->getBackend(device.type()),
                                              nullptr, timeouts_of(options));
  } catch (const c10::Error& error) {
    throw ConfigError(c10::str("[Connect] the process group has no backend for the CPU and for ", device, " (",
                               first_line(error), "); make it with both, such as \"cpu:gloo,cuda:nccl\""));
  }
}

}  // namespace duet
