#define USE_C10D_GLOO  // without it ProcessGroupGloo.hpp is empty
#include "distributed/detail/connect.h"
#include <chrono>
#include <limits>
#include <thread>
#include <ATen/ATen.h>
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <unistd.h>
#include "base/error.h"
#include "tests/support/ranks.h"

namespace duet {
namespace {

using testing::expect_error_on_all;
using testing::expect_no_error;
using testing::expect_rank_error;
using testing::expect_same_on_all;
using testing::RankResult;
using testing::run_processes;

// Nobody waits for that long; but for one who does not come, as long as the others may need to come.
const ConnectOptions kPatient{.start_timeout = 200, .timeout = 60}, kQuick{.start_timeout = 5, .timeout = 5};

// What processes give of which each connects after it has changed its launch and options.
std::vector<RankResult> connected(int64_t count, const ConnectOptions& options,
                                  const std::function<void(Launch&, at::Device&)>& change) {
  return run_processes(count, [&](Launch launch) {
    at::Device device = at::kCPU;
    change(launch, device);
    if (launch.world_size > 0) connect(launch, device, options)->barrier();
    return NamedTensors();
  });
}

TEST(Connect, ChecksItsOptions) {
  for (const double wrong : {0.0, std::numeric_limits<double>::quiet_NaN()})
    EXPECT_THROW(connect(Launch(), at::kCPU, {.start_timeout = wrong}), ConfigError) << wrong;
}

TEST(Connect, RefusesAPortInUse) {
  const int fd = socket(AF_INET6, SOCK_STREAM, 0);
  const int off = 0;
  setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_addr = in6addr_any;
  socklen_t size = sizeof(address);
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(fd, 1), 0);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  const auto results =
      connected(2, kQuick, [&](Launch& launch, at::Device&) { launch.master_port = ntohs(address.sin6_port); });
  close(fd);
  expect_rank_error(results[0], 2, "rank 0 cannot listen at 127.0.0.1:");
  expect_rank_error(results[1], 6, "rank 1 ");  // who listens there does not answer
}

c10::intrusive_ptr<c10d::TCPStore> own_store(const Launch& launch) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(launch.master_port);
  options.isServer = launch.rank == 0;
  options.waitWorkers = false;
  return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
}

TEST(Connect, RefusesRanksThatDoNotFitTogether) {
  const auto twice = [](Launch& launch, at::Device&) {
    if (launch.rank == 2) launch.rank = 1;
  };
  expect_error_on_all(connected(3, kPatient, twice), 2, "two processes say they are rank 1 of 3");
  const auto more = [](Launch& launch, at::Device&) {
    if (launch.rank == 1) launch.world_size = 4;
  };
  expect_error_on_all(connected(3, kPatient, more), 2, "expected the same number");
  const auto other = [](Launch& launch, at::Device& device) {
    if (launch.rank == 1) device = at::Device(at::kCUDA, 0);
  };
  expect_error_on_all(connected(2, kPatient, other), 2, "expected the same kind of device");
  const auto of_launcher = [&](Launch& launch, at::Device& device) {
    static c10::intrusive_ptr<c10d::TCPStore> store;  // as long as rank 0
    if (launch.rank == 0) store = own_store(launch);
    launch.agent_store = true;
    other(launch, device);
  };
  expect_error_on_all(connected(3, kPatient, of_launcher), 2, "expected the same kind of device");
}

TEST(Connect, NamesARankThatDoesNotCome) {
  for (const int64_t missing : {0, 1, 2}) {
    const auto results = connected(3, kQuick, [&](Launch& launch, at::Device&) {
      if (launch.rank == missing) launch.world_size = 0;  // it does not connect
    });
    for (std::size_t rank = 0; rank < 3; ++rank) {
      const std::string own = std::to_string(rank), other = std::to_string(missing);
      if (own == other) continue;
      expect_rank_error(results[rank], 6,
                        missing == 0 ? "rank " + own + " cannot reach rank 0 at 127.0.0.1:"
                                     : "rank " + other + " of 3 did not come to 127.0.0.1:");
    }
  }
}

TEST(Connect, WaitsForARankThatIsLate) {
  expect_no_error(connected(2, kPatient, [](Launch& launch, at::Device&) {
    if (launch.rank == 0) std::this_thread::sleep_for(std::chrono::seconds(1));
  }));
}

c10::intrusive_ptr<c10d::ProcessGroup> own_group(const Launch& launch) {
  const auto store = own_store(launch);
  const auto rank = static_cast<int>(launch.rank), size = static_cast<int>(launch.world_size);
  auto group = c10::make_intrusive<c10d::ProcessGroup>(store, rank, size);
  auto gloo = c10d::ProcessGroupGloo::Options::create(std::chrono::seconds(60));
  gloo->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::GLOO,
                    c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, gloo));
  group->setDefaultBackend(c10d::ProcessGroup::BackendType::GLOO);
  return group;
}

TEST(Connect, TakesAProcessGroupOfTheCallers) {
  expect_same_on_all(run_processes(2, [](const Launch& launch) {
    const auto group = own_group(launch);
    const auto ranks = connect(group, at::kCPU, kPatient);
    const at::Tensor values = at::full({5}, ranks->rank() + 1);
    ranks->start_sum(values);
    ranks->finish(values);
    const std::string text = ranks->broadcast("rank " + std::to_string(ranks->rank()), 1);
    if (text != "rank 1" || ranks->world_size() != 2) throw std::runtime_error(text);
    ranks->barrier();
    return NamedTensors{{"sum", values}};
  }));
}

TEST(Connect, SaysThatAProcessGroupOfTheCallersIsBroken) {
  const auto results = run_processes(2, [](const Launch& launch) {
    const auto ranks = connect(own_group(launch), at::kCPU, kPatient);
    ranks->barrier();
    if (launch.rank == 1) _exit(0);
    ranks->barrier();
    return NamedTensors();
  });
  expect_rank_error(results[0], 6, "a call that waits for other ranks failed");
}

TEST(Connect, RefusesAProcessGroupWithoutTheBackend) {
  EXPECT_THROW(connect(c10::intrusive_ptr<c10d::ProcessGroup>(), at::kCPU), ConfigError);
  const auto results = run_processes(2, [](const Launch& launch) {
    connect(own_group(launch), at::Device(at::kCUDA, 0), kPatient);
    return NamedTensors();
  });
  expect_error_on_all(results, 2, "no backend for the CPU and for cuda");
}

}  // namespace
}  // namespace duet
