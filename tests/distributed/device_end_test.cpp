#define USE_C10D_GLOO  // without it ProcessGroupGloo.hpp is empty
#include <condition_variable>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <unistd.h>
#include "base/error.h"
#include "distributed/detail/c10d_communicator.h"
#include "tests/support/ranks.h"
#include "tests/support/temp_dir.h"

// A rank whose host waits for its GPU, which waits for a lost rank: only an abort of the device's connections ends
// that.

namespace duet {
namespace {

using namespace std::chrono_literals;
using testing::run_processes;

// Stands in for NCCL: a wait that nothing but abort() ends, which itself returns when the captured graphs are gone.
class StuckDevice : public c10d::Backend {
 public:
  StuckDevice(int rank, int size) : Backend(rank, size) {}
  const std::string getBackendName() const override { return "stuck"; }
  void abort() override {
    std::unique_lock lock(mutex_);
    ++aborts;
    changed_.notify_all();
    changed_.wait(lock, [this] { return graphs == 0; });
    ++ended;
  }
  void free_graph() {
    const std::lock_guard lock(mutex_);
    --graphs;
    changed_.notify_all();
  }
  bool wait_for_abort(std::chrono::milliseconds most) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, most, [this] { return aborts > 0; });
  }
  int aborts = 0, ended = 0, graphs = 1;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
};

struct Rank {
  c10::intrusive_ptr<c10d::Store> store;
  c10::intrusive_ptr<StuckDevice> device;
  std::unique_ptr<C10dCommunicator> communicator;
};

// As a trainer does, which is gone before its communicator.
struct Graph {
  StuckDevice& device;
  ~Graph() { device.free_graph(); }
};

c10::intrusive_ptr<c10d::Store> client(const Launch& launch, bool server) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(launch.master_port);
  options.isServer = server;
  options.waitWorkers = false;
  return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
}

// `silence`: of a rank that is taken for lost.
Rank connected(const Launch& launch, std::chrono::milliseconds silence = 2s) {
  Rank rank;
  const auto own = static_cast<int>(launch.rank), size = static_cast<int>(launch.world_size);
  rank.store = client(launch, launch.rank == 0);
  const auto heartbeats = c10::make_intrusive<c10d::PrefixStore>("watch", client(launch, false));
  auto gloo = c10d::ProcessGroupGloo::Options::create(60s);
  gloo->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  auto host = c10::make_intrusive<c10d::ProcessGroupGloo>(rank.store, own, size, gloo);
  rank.device = c10::make_intrusive<StuckDevice>(own, size);
  auto watch = std::make_unique<PeerWatch>(heartbeats, launch.rank, launch.world_size, 0);
  rank.communicator = std::make_unique<C10dCommunicator>(std::move(host), rank.device, std::move(watch),
                                                         CommunicatorTimeouts{60s, silence});
  rank.communicator->barrier();
  return rank;
}

// The rank that is lost, by a signal: the others find out though nobody of them calls the communicator.
void lose(int64_t lost, int signal) {
  const auto results = run_processes(3, [&](const Launch& launch) {
    Rank rank = connected(launch);
    const Graph graph{*rank.device};
    if (launch.rank == lost) raise(signal);
    if (!rank.device->wait_for_abort(100s)) throw std::runtime_error("nobody ended the wait");
    rank.communicator->barrier();
    return NamedTensors();
  });
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    if (static_cast<int64_t>(rank) == lost) continue;
    testing::expect_rank_error(results[rank], 6, "rank " + std::to_string(lost) + " is dead or stopped");
  }
}

TEST(DeviceEnd, ComesWhenARankIsKilledAlsoTheOneThatHoldsTheStore) {
  for (const int64_t lost : {0, 1, 2}) lose(lost, SIGKILL);
}

TEST(DeviceEnd, ComesWhenARankIsStopped) { lose(1, SIGSTOP); }

TEST(DeviceEnd, ComesAtOnceWhenARankFails) {
  const auto results = run_processes(3, [&](const Launch& launch) {
    Rank rank = connected(launch, 200s);
    const auto device = rank.device;
    if (launch.rank == 2) {
      {
        const Graph graph{*rank.device};
        rank.communicator->fail("it has had enough");  // while the graphs live
      }
      rank.communicator.reset();
      if (device->aborts != 1 || device->ended != 1) throw std::runtime_error("the device was not aborted");
      return NamedTensors();
    }
    const Graph graph{*rank.device};
    if (!rank.device->wait_for_abort(100s)) throw std::runtime_error("nobody ended the wait");
    rank.communicator->barrier();
    return NamedTensors();
  });
  EXPECT_EQ(results[2].error, "");
  for (const std::size_t rank : {0, 1})
    testing::expect_rank_error(results[rank], 6, "rank 2 failed in step 0 (start): it has had enough");
}

TEST(DeviceEnd, DoesNotComeInARunThatEndsWell) {
  const TempDir folder;
  const std::string over = folder / "over";  // the store is gone
  const auto results = run_processes(3, [&](const Launch& launch) {
    Rank rank = connected(launch);
    std::this_thread::sleep_for(3s);                        // longer than the silence that is taken for a loss
    if (launch.rank != 1) std::this_thread::sleep_for(3s);  // who has left is not lost
    if (launch.rank == 2) {                                 // nor the store, if all end soon after
      while (!std::filesystem::exists(over)) std::this_thread::sleep_for(1ms);
      std::this_thread::sleep_for(500ms);
    }
    rank.communicator.reset();
    rank.store.reset();
    if (launch.rank == 0) std::ofstream(over) << "over";
    if (rank.device->aborts != 0) throw std::runtime_error("a healthy device was aborted");
    return NamedTensors();
  });
  testing::expect_no_error(results);
}

// Looks every `pause` for `total`, from `begin` on.
void look(HeartbeatAge& age, HeartbeatAge::Clock::time_point& now, std::chrono::milliseconds pause,
          std::chrono::milliseconds total) {
  for (auto passed = 0ms; passed < total; passed += pause) age.look(now += pause, /*heard=*/false);
}

TEST(HeartbeatAge, IsTimeHoweverOftenItIsLookedAt) {
  for (const auto pause : {10ms, 50ms, 100ms, 200ms}) {
    HeartbeatAge age;
    HeartbeatAge::Clock::time_point now{1h};
    age.look(now, true);
    look(age, now, pause, 2s);
    EXPECT_EQ(age.length(), 2s) << pause.count();
    age.look(now += pause, true);
    EXPECT_EQ(age.length(), 0s);
  }
}

// A process that was stopped for a minute does not know who spoke meanwhile.
TEST(HeartbeatAge, HardlyGrowsWhileNobodyListens) {
  HeartbeatAge age;
  HeartbeatAge::Clock::time_point now{1h};
  age.look(now, true);
  age.look(now += 60s, false);
  EXPECT_EQ(age.length(), HeartbeatAge::kLongestPause);
}

}  // namespace
}  // namespace duet
