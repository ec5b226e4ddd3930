#include <duet/core/comm/meeting.h>

#include <c10/util/StringUtil.h>
#include <duet/core/comm/gpu_identity.h>
#include <duet/core/comm/own_gpus.h>
#include <duet/core/comm/round.h>
#include <duet/core/comm/store_text.h>
#include <duet/core/error.h>
#include <duet/core/error_text.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <unistd.h>

#include <string>
#include <thread>
#include <vector>

namespace duet {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

std::string place_of(const Launch& launch) { return c10::str(launch.master_address, ":", launch.master_port); }

std::string name_of(at::Device device) {
  char host[256] = {};
  ::gethostname(host, sizeof host - 1);
  return c10::str(device, " of ", host);
}

std::string late_text(const Launch& launch, const std::string& who, milliseconds timeout) {
  return c10::str("[Launch] ", who, " of ", launch.world_size, " did not come to ", place_of(launch), " within ",
                  timeout.count() / 1000.0, " s; check that it was started, or raise the start timeout");
}

std::string twice_text(const Launch& launch) {
  return c10::str("two processes say they are rank ", launch.rank, " of ", launch.world_size, " at ", place_of(launch),
                  ", expected each rank once; give every process a rank of its own");
}

// One rank's part of the meeting. Who finds a contradiction tells all.
class Hello {
 public:
  Hello(const Launch& launch, at::Device device, c10d::Store& store, milliseconds timeout, Clock::time_point deadline)
      : launch_(launch),
        store_(store),
        timeout_(timeout),
        deadline_(deadline),
        device_(device),
        kind_(c10::DeviceTypeName(device.type(), /*lower_case=*/true)) {}

  void say() {
    const std::string key = "hello/" + std::to_string(launch_.rank);
    if (store_.add(key + "/count", 1) > 1) refuse(twice_text(launch_));
    set_text(store_, "device/" + std::to_string(launch_.rank), kind_);
    if (device_.is_cuda()) {
      set_text(store_, "gpu/" + std::to_string(launch_.rank), gpu_identity(device_));
      set_text(store_, "gpu_name/" + std::to_string(launch_.rank), name_of(device_));
    }
    set_text(store_, key, std::to_string(launch_.world_size));
  }

  void hear_all() {
    for (int64_t rank = 0; rank < launch_.world_size; ++rank) hear(rank);
    const std::string refused = text_at(store_, "refused");
    if (!refused.empty()) throw ConfigError(refused);
    if (device_.is_cuda()) check_gpus();
  }

 private:
  [[noreturn]] void refuse(const std::string& what) {
    const std::string text = "[Launch] " + what;
    set_text(store_, "refused", text);
    throw ConfigError(text);
  }

  void hear(int64_t rank) {
    const std::string key = "hello/" + std::to_string(rank);
    for (; !store_.check({key}); std::this_thread::sleep_for(milliseconds(10))) check_for_the_end(rank);
    const std::string size = text_at(store_, key);
    if (size != std::to_string(launch_.world_size)) {
      refuse(c10::str("rank ", rank, " was started for ", size, " processes and rank ", launch_.rank, " for ",
                      launch_.world_size, ", expected the same number; start them with one command"));
    }
    const std::string kind = text_at(store_, "device/" + std::to_string(rank));
    if (kind != kind_) {
      refuse(c10::str("rank ", rank, " trains on ", kind, " and rank ", launch_.rank, " on ", kind_,
                      ", expected the same kind of device; set it to one that all of them have"));
    }
  }

  void check_gpus() {
    std::vector<GpuOfRank> gpus;
    for (int64_t rank = 0; rank < launch_.world_size; ++rank) {
      const std::string name = std::to_string(rank);
      gpus.push_back({text_at(store_, "gpu/" + name), text_at(store_, "gpu_name/" + name)});
    }
    const std::string shared = find_shared_gpu(gpus);
    if (!shared.empty()) refuse(shared);
  }

  void check_for_the_end(int64_t awaited) {
    const std::string refused = text_at(store_, "refused"), late = text_at(store_, "late");
    if (!refused.empty()) throw ConfigError(refused);
    if (!late.empty()) throw PeerError(late);
    if (Clock::now() < deadline_) return;
    const std::string text = late_text(launch_, "rank " + std::to_string(awaited), timeout_);
    set_text(store_, "late", text);
    throw PeerError(text);
  }

  const Launch& launch_;
  c10d::Store& store_;
  milliseconds timeout_;
  Clock::time_point deadline_;
  at::Device device_;
  std::string kind_;
};

// What was said before the launcher started the group anew must not be heard again.
std::string part_of(const Launch& launch, const c10::intrusive_ptr<c10d::Store>& store, milliseconds timeout,
                    Clock::time_point deadline) {
  if (!launch.agent_store) return "duet";  // rank 0 has just made it
  c10d::PrefixStore rounds("duet", store);
  const Round round = find_round(rounds, launch.rank, launch.world_size, deadline);
  if (round.twice) throw ConfigError("[Launch] " + twice_text(launch));
  if (!round.name.empty()) return "duet/" + round.name;
  std::string missing;
  for (const int64_t rank : round.missing) missing += c10::str(missing.empty() ? "rank " : ", rank ", rank);
  throw PeerError(late_text(launch, missing.empty() ? "a rank" : missing, timeout));
}

}  // namespace

std::string meet(const Launch& launch, at::Device device, const c10::intrusive_ptr<c10d::Store>& store,
                 milliseconds timeout) {
  try {
    const auto deadline = Clock::now() + timeout;
    const std::string part = part_of(launch, store, timeout, deadline);
    c10d::PrefixStore own(part, store);
    Hello hello(launch, device, own, timeout, deadline);
    hello.say();
    hello.hear_all();
    return part;
  } catch (const Error&) {
    // A rank that holds the store leaves last: the others read there what is wrong.
    if (launch.holds_store()) std::this_thread::sleep_for(milliseconds(500));
    throw;
  } catch (const std::exception& error) {
    throw PeerError(c10::str("[Launch] rank ", launch.rank, " lost ", launch.agent_store ? "the launcher" : "rank 0",
                             " at ", place_of(launch), " while the ranks met (", first_line(error),
                             "); see its own error"));
  }
}

}  // namespace duet
