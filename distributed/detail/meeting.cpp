#include "distributed/detail/meeting.h"

#include <c10/util/StringUtil.h>
#include "distributed/detail/gpu_identity.h"
#include "distributed/detail/own_gpus.h"
#include "distributed/detail/pause.h"
#include "distributed/detail/rank_error.h"
#include "distributed/detail/round.h"
#include "distributed/detail/store_text.h"
#include "base/error.h"
#include "base/detail/error_text.h"
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <unistd.h>

#include <iterator>
#include <sstream>
#include <string>
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

std::string kind_of(at::Device device) { return c10::DeviceTypeName(device.type(), /*lower_case=*/true); }

// What a rank says of itself.
struct Hello {
  std::string world_size, kind, gpu, gpu_name;  // of a failed rank no device is known: its kind is empty
  std::string failure;

  std::string text() const { return c10::str(world_size, "\n", kind, "\n", gpu, "\n", gpu_name, "\n", failure); }
};

Hello hello_of(const Launch& launch, const Attendee& self) {
  Hello hello;
  hello.world_size = std::to_string(launch.world_size);
  hello.failure = self.failure;
  if (!self.failure.empty()) return hello;
  hello.kind = kind_of(self.device);
  if (!self.device.is_cuda()) return hello;
  hello.gpu = gpu_identity(self.device);
  hello.gpu_name = name_of(self.device);
  return hello;
}

Hello hello_from(const std::string& text) {
  Hello hello;
  std::istringstream lines(text);
  for (std::string* line : {&hello.world_size, &hello.kind, &hello.gpu, &hello.gpu_name}) std::getline(lines, *line);
  hello.failure.assign(std::istreambuf_iterator<char>(lines), {});
  return hello;
}

std::string hello_key(int64_t rank) { return "hello/" + std::to_string(rank); }
std::string heard_key(int64_t rank) { return "heard/" + std::to_string(rank); }

// One rank's part of the meeting. Who finds a contradiction tells all.
class Meeting {
 public:
  Meeting(const Launch& launch, const Attendee& self, c10d::Store& store, milliseconds timeout,
          Clock::time_point deadline)
      : launch_(launch), store_(store), timeout_(timeout), deadline_(deadline), own_(hello_of(launch, self)) {}

  void say_hello() {
    const std::string key = hello_key(launch_.rank);
    if (store_.add(key + "/count", 1) > 1) refuse(twice_text(launch_));
    set_text(store_, key, own_.text());
  }

  void hear_all() {
    std::vector<Hello> all;
    for (int64_t rank = 0; rank < launch_.world_size; ++rank) all.push_back(hear(rank));
    const std::string refused = text_at(store_, "refused");
    if (!refused.empty()) throw ConfigError(refused);
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      if (!all[rank].failure.empty()) throw_error_of(static_cast<int64_t>(rank), all[rank].failure);
    }
    if (!own_.gpu_name.empty()) check_gpus(all);
  }

  // At the end of a meeting that has failed: until all know why, but not for long, since some may be lost. Who holds
  // the store stays in any case: one that comes late reads there what is wrong.
  void leave() {
    set_text(store_, heard_key(launch_.rank), "1");
    std::vector<std::string> heard;
    for (int64_t rank = 0; rank < launch_.world_size; ++rank) heard.push_back(heard_key(rank));
    const auto now = Clock::now();
    const auto earliest = now + milliseconds(launch_.holds_store() ? 500 : 0), latest = now + milliseconds(1000);
    for (Pause pause; Clock::now() < latest; pause.take()) {
      if (Clock::now() >= earliest && store_.check(heard)) return;
    }
  }

 private:
  [[noreturn]] void refuse(const std::string& what) {
    const std::string text = "[Launch] " + what;
    set_text(store_, "refused", text);
    throw ConfigError(text);
  }

  Hello hear(int64_t rank) {
    const std::string key = hello_key(rank);
    for (Pause pause; !store_.check({key}); pause.take()) check_for_the_end(rank);
    const Hello hello = hello_from(text_at(store_, key));
    if (hello.world_size != own_.world_size) {
      refuse(c10::str("rank ", rank, " was started for ", hello.world_size, " processes and rank ", launch_.rank,
                      " for ", own_.world_size, ", expected the same number; start them with one command"));
    }
    const bool have_devices = hello.failure.empty() && own_.failure.empty();
    if (have_devices && hello.kind != own_.kind) {
      refuse(c10::str("rank ", rank, " trains on ", hello.kind, " and rank ", launch_.rank, " on ", own_.kind,
                      ", expected the same kind of device; set it to one that all of them have"));
    }
    return hello;
  }

  void check_gpus(const std::vector<Hello>& all) {
    std::vector<GpuOfRank> gpus;
    for (const Hello& hello : all) gpus.push_back({hello.gpu, hello.gpu_name});
    const std::string shared = find_shared_gpu(gpus);
    if (!shared.empty()) refuse(shared);
  }

  // Who has failed says more than who is missing.
  void throw_known_failure() {
    for (int64_t rank = 0; rank < launch_.world_size; ++rank) {
      if (!store_.check({hello_key(rank)})) continue;
      const Hello hello = hello_from(text_at(store_, hello_key(rank)));
      if (!hello.failure.empty()) throw_error_of(rank, hello.failure);
    }
  }

  void check_for_the_end(int64_t awaited) {
    const std::string refused = text_at(store_, "refused"), late = text_at(store_, "late");
    if (!refused.empty()) throw ConfigError(refused);
    if (!late.empty()) throw PeerError(late);
    if (Clock::now() < deadline_) return;
    throw_known_failure();
    const std::string text = late_text(launch_, "rank " + std::to_string(awaited), timeout_);
    set_text(store_, "late", text);
    throw PeerError(text);
  }

  const Launch& launch_;
  c10d::Store& store_;
  milliseconds timeout_;
  Clock::time_point deadline_;
  Hello own_;
};

void hold_meeting(Meeting& meeting) {
  try {
    meeting.say_hello();
    meeting.hear_all();
  } catch (const Error&) {
    try {
      meeting.leave();
    } catch (const std::exception&) {
      // The store is gone, and this rank's own error says more.
    }
    throw;
  }
}

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

std::string meet(const Launch& launch, const Attendee& self, const c10::intrusive_ptr<c10d::Store>& store,
                 milliseconds timeout) {
  try {
    const auto deadline = Clock::now() + timeout;
    const std::string part = part_of(launch, store, timeout, deadline);
    c10d::PrefixStore own(part, store);
    Meeting meeting(launch, self, own, timeout, deadline);
    hold_meeting(meeting);
    return part;
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw PeerError(c10::str("[Launch] rank ", launch.rank, " lost ", launch.agent_store ? "the launcher" : "rank 0",
                             " at ", place_of(launch), " while the ranks met (", first_line(error),
                             "); see its own error"));
  }
}

}  // namespace duet
