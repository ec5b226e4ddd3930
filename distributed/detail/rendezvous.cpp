#include "distributed/detail/rendezvous.h"
#include <algorithm>
#include <iterator>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <vector>
#include <c10/util/StringUtil.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <unistd.h>
#include "base/detail/concat_text.h"
#include "base/detail/text.h"
#include "base/error.h"
#include "distributed/detail/connect.h"
#include "distributed/detail/nccl_backend.h"
#include "distributed/detail/rank_error.h"
#include "distributed/detail/store_text.h"

namespace duet {

namespace {

using Clock = std::chrono::steady_clock;

std::string ticket_key(int64_t rank) { return "ticket/" + std::to_string(rank); }
std::string accepted_key(int64_t rank) { return "accepted/" + std::to_string(rank); }

std::string new_ticket(int64_t world_size) {
  std::random_device random;
  return concat_text(world_size, ".", random(), ".", random());
}

// "NAME ticket-of-0 ticket-of-1 ..."
std::vector<std::string> words_of(const std::string& offer) {
  std::istringstream words(offer);
  return {std::istream_iterator<std::string>(words), {}};
}

// The tickets of all ranks; empty as long as one is missing.
std::string all_tickets(c10d::Store& store, int64_t world_size) {
  std::string tickets;
  for (int64_t rank = 0; rank < world_size; ++rank) {
    const std::string ticket = text_at(store, ticket_key(rank));
    if (ticket.rfind(std::to_string(world_size) + ".", 0) != 0) return {};  // none, or of a world of another size
    tickets += " " + ticket;
  }
  return tickets;
}

// Those who have no ticket for a world of this size, or have not found theirs in the offer.
std::vector<int64_t> missing_ranks(c10d::Store& store, int64_t world_size, const std::string& offer) {
  std::vector<int64_t> missing;
  const std::vector<std::string> words = words_of(offer);
  for (int64_t rank = 0; rank < world_size; ++rank) {
    const auto place = static_cast<std::size_t>(rank) + 1;
    const std::string ticket = text_at(store, ticket_key(rank));
    const bool offered = place < words.size() && words[place] == ticket;
    const bool accepts = rank == 0 || text_at(store, accepted_key(rank)) == offer;
    if (!offered || !accepts) missing.push_back(rank);
  }
  return missing;
}

// A ticket of an earlier round is replaced when its rank comes; then there is another offer.
Round lead(c10d::Store& store, int64_t world_size, const std::string& own, Clock::time_point deadline) {
  std::string tickets, offer;
  int64_t offers = 0;
  for (PollInterval interval; Clock::now() < deadline; interval.sleep()) {
    if (text_at(store, ticket_key(0)) != own) return {.twice = true};
    const std::string seen = all_tickets(store, world_size);
    if (seen.empty()) continue;
    if (seen != tickets) {
      tickets = seen;
      offer = concat_text(own, ".", ++offers, tickets);
      set_text(store, "offer", offer);
    }
    if (!missing_ranks(store, world_size, offer).empty()) continue;
    set_text(store, "begun", offer);
    return {.name = words_of(offer).front()};
  }
  return {.missing = missing_ranks(store, world_size, offer)};
}

Round follow(c10d::Store& store, int64_t rank, int64_t world_size, const std::string& own, Clock::time_point deadline) {
  std::string accepted;
  for (PollInterval interval; Clock::now() < deadline; interval.sleep()) {
    if (text_at(store, ticket_key(rank)) != own) return {.twice = true};
    const std::string offer = text_at(store, "offer");
    const std::vector<std::string> words = words_of(offer);
    const auto place = static_cast<std::size_t>(rank) + 1;
    if (place >= words.size() || words[place] != own) continue;
    if (offer != accepted) set_text(store, accepted_key(rank), offer);
    accepted = offer;
    if (text_at(store, "begun") == offer) return {.name = words.front()};
  }
  return {.missing = missing_ranks(store, world_size, text_at(store, "offer"))};
}

}  // namespace

Round find_round(c10d::Store& store, int64_t rank, int64_t world_size, Clock::time_point deadline) {
  const std::string own = new_ticket(world_size);
  set_text(store, ticket_key(rank), own);
  return rank == 0 ? lead(store, world_size, own, deadline) : follow(store, rank, world_size, own, deadline);
}

std::string find_shared_gpu(const std::vector<GpuOfRank>& of_ranks) {
  std::map<std::string, std::size_t> owners;
  for (std::size_t rank = 0; rank < of_ranks.size(); ++rank) {
    const auto& [identity, name] = of_ranks[rank];
    const auto [owner, is_new] = owners.emplace(identity, rank);
    if (is_new || identity.empty()) continue;
    return c10::str("ranks ", owner->second, " and ", rank, " both train on ", identity, " (",
                    of_ranks[owner->second].name, " and ", name,
                    "), expected a GPU each; start no more processes than there are GPUs, leave their choice to "
                    "device=cuda and check LOCAL_RANK and CUDA_VISIBLE_DEVICES, or train with device=cpu");
  }
  return {};
}

namespace {

using std::chrono::milliseconds;

std::string place_of(const Launch& launch) { return concat_text(launch.master_address, ":", launch.master_port); }

std::string late_text(const Launch& launch, const std::vector<int64_t>& missing, milliseconds timeout) {
  std::string who;
  for (const int64_t rank : missing) who += c10::str(who.empty() ? "rank " : ", rank ", rank);
  return c10::str("[Launch] ", who.empty() ? "a rank" : who, " of ", launch.world_size, " did not come to ",
                  place_of(launch), " within ", timeout.count() / 1000.0,
                  " s; check that it was started, or raise the start timeout");
}

std::string twice_text(const Launch& launch) {
  return c10::str("[Launch] two processes say they are rank ", launch.rank, " of ", launch.world_size, " at ",
                  place_of(launch), ", expected each rank once; give every process a rank of its own");
}

std::string packed_config_error(const std::string& text) {
  return packed_error(std::make_exception_ptr(ConfigError(text)));
}

// What a rank says of itself, as it stands in the store.
struct Hello {
  std::string world_size, kind, gpu, gpu_name;  // of a failed rank no device is known: its kind is empty
  std::string failure;

  std::string text() const { return concat_text(world_size, "\n", kind, "\n", gpu, "\n", gpu_name, "\n", failure); }
};

Hello hello_of(const Launch& launch, const Participant& self) {
  Hello hello;
  hello.world_size = std::to_string(launch.world_size);
  hello.failure = self.failure;
  if (!self.failure.empty()) return hello;
  hello.kind = c10::DeviceTypeName(self.device.type(), /*lower_case=*/true);
  if (!self.device.is_cuda()) return hello;
  char host[256] = {};
  ::gethostname(host, sizeof host - 1);
  hello.gpu = gpu_identity(self.device);
  hello.gpu_name = c10::str(self.device, " of ", host);
  return hello;
}

Hello hello_from(const std::string& text) {
  Hello hello;
  std::istringstream lines(text);
  for (std::string* line : {&hello.world_size, &hello.kind, &hello.gpu, &hello.gpu_name}) std::getline(lines, *line);
  hello.failure.assign(std::istreambuf_iterator<char>(lines), {});
  return hello;
}

// What is wrong between rank 0 and another one; empty: they fit.
std::string contradiction(const Hello& first, const Hello& other, std::size_t rank) {
  if (other.world_size != first.world_size) {
    return c10::str("[Launch] rank ", rank, " was started for ", other.world_size, " processes and rank 0 for ",
                    first.world_size, ", expected the same number; start them with one command");
  }
  const bool have_devices = other.failure.empty() && first.failure.empty();
  if (!have_devices || other.kind == first.kind) return {};
  return c10::str("[Launch] rank ", rank, " trains on ", other.kind, " and rank 0 on ", first.kind,
                  ", expected the same kind of device; set it to one that all of them have");
}

std::string shared_gpu(const std::vector<Hello>& all) {
  std::vector<GpuOfRank> gpus;
  for (const Hello& hello : all) gpus.push_back({hello.gpu, hello.gpu_name});
  const std::string found = find_shared_gpu(gpus);
  return found.empty() ? found : "[Launch] " + found;
}

// The first failure that is known, for all ranks; empty: there is none.
std::string failure_among(const std::vector<Hello>& all) {
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (!all[rank].failure.empty()) return packed_error_of(static_cast<int64_t>(rank), all[rank].failure);
  }
  return {};
}

std::string hello_key(int64_t rank) { return "hello/" + std::to_string(rank); }
std::string heard_key(int64_t rank) { return "heard/" + std::to_string(rank); }
constexpr const char* kOutcome = "outcome";  // together_text(), or the packed error of all ranks; set once

std::string together_text(const std::string& world_size) { return "together " + world_size; }

// One rank's part: every rank says hello, rank 0 looks whether all fit together, all wait for the outcome.
class Rendezvous {
 public:
  Rendezvous(const Launch& launch, const Participant& self, c10d::Store& store, milliseconds timeout,
             Clock::time_point deadline)
      : launch_(launch), own_(hello_of(launch, self)), store_(store), timeout_(timeout), deadline_(deadline) {}

  void join() {
    const std::string key = hello_key(launch_.rank);
    if (store_.add(key + "/count", 1) > 1) {
      // The group may be complete already: it must not be disturbed, and this process is no part of it.
      set_first(store_, kOutcome, packed_config_error(twice_text(launch_)));
      refuse(packed_config_error(twice_text(launch_)));
    }
    set_text(store_, key, own_.text());
    if (launch_.rank == 0) set_first(store_, kOutcome, judge());
    std::string outcome = await_outcome();
    if (outcome == together_text(own_.world_size)) return;
    if (outcome.starts_with(together_text(""))) outcome = packed_config_error(other_world_text(outcome));
    refuse(outcome);
  }

 private:
  [[noreturn]] void refuse(const std::string& outcome) {
    try {
      leave();
    } catch (const std::exception&) {
      // The store is gone, and the outcome says more.
    }
    throw_packed(outcome);
  }

  // Rank 0's: the outcome, unless somebody else finds one before.
  std::string judge() {
    std::vector<Hello> all;
    for (int64_t rank = 0; rank < launch_.world_size; ++rank) {
      for (PollInterval interval; !store_.check({hello_key(rank)}); interval.sleep()) {
        if (store_.check({kOutcome})) return {};  // which stays
        if (Clock::now() >= deadline_) return late();
      }
      all.push_back(hello_from(text_at(store_, hello_key(rank))));
      const std::string wrong = contradiction(all.front(), all.back(), all.size() - 1);
      if (!wrong.empty()) return packed_config_error(wrong);
    }
    if (const std::string failure = failure_among(all); !failure.empty()) return failure;
    if (const std::string shared = shared_gpu(all); !shared.empty()) return packed_config_error(shared);
    return together_text(own_.world_size);
  }

  // Of a rank beyond the world of the others, which they do not wait for.
  std::string other_world_text(const std::string& outcome) const {
    Hello first;
    first.world_size = outcome.substr(together_text("").size());
    return contradiction(first, own_, static_cast<std::size_t>(launch_.rank));
  }

  // Who has failed says more than who is missing.
  std::string late() {
    std::vector<Hello> all;
    std::vector<int64_t> missing;
    for (int64_t rank = 0; rank < launch_.world_size; ++rank) {
      const std::string text = text_at(store_, hello_key(rank));
      if (text.empty()) missing.push_back(rank);
      all.push_back(hello_from(text));
    }
    const std::string failure = failure_among(all);
    if (!failure.empty()) return failure;
    return packed_error(std::make_exception_ptr(PeerError(late_text(launch_, missing, timeout_))));
  }

  std::string await_outcome() {
    const auto left = std::chrono::duration_cast<milliseconds>(deadline_ - Clock::now());
    try {
      store_.wait({kOutcome}, std::max(left, milliseconds(1)));
    } catch (const std::exception&) {
      set_first(store_, kOutcome, late());  // throws if the store is gone
    }
    return text_of(store_.get(kOutcome));
  }

  // At the end of one that has failed: until all know why, but not for long, since some may be lost. Who holds the
  // store stays in any case: one that comes late reads there what is wrong.
  void leave() {
    set_text(store_, heard_key(launch_.rank), "1");
    std::vector<std::string> heard;
    for (int64_t rank = 0; rank < launch_.world_size; ++rank) heard.push_back(heard_key(rank));
    const auto now = Clock::now();
    const auto earliest = now + milliseconds(launch_.holds_store() ? 500 : 0), latest = now + milliseconds(1000);
    for (PollInterval interval; Clock::now() < latest; interval.sleep()) {
      if (Clock::now() >= earliest && store_.check(heard)) return;
    }
  }

  const Launch& launch_;
  Hello own_;
  c10d::Store& store_;
  milliseconds timeout_;
  Clock::time_point deadline_;
};

// What was said before the launcher restarted the group must not be heard again.
std::string prefix_of(const Launch& launch, const c10::intrusive_ptr<c10d::Store>& store, milliseconds timeout,
                      Clock::time_point deadline) {
  if (!launch.agent_store) return "duet";  // rank 0 has just made it
  c10d::PrefixStore rounds("duet", store);
  const Round round = find_round(rounds, launch.rank, launch.world_size, deadline);
  if (round.twice) throw ConfigError(twice_text(launch));
  if (round.name.empty()) throw PeerError(late_text(launch, round.missing, timeout));
  return "duet/" + round.name;
}

}  // namespace

std::string rendezvous(const Launch& launch, const Participant& self, const c10::intrusive_ptr<c10d::Store>& store,
                       milliseconds timeout) {
  try {
    const auto deadline = Clock::now() + timeout;
    const std::string prefix = prefix_of(launch, store, timeout, deadline);
    c10d::PrefixStore own(prefix, store);
    Rendezvous(launch, self, own, timeout, deadline).join();
    return prefix;
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw PeerError(c10::str("[Launch] rank ", launch.rank, " lost ", launch.agent_store ? "the launcher" : "rank 0",
                             " at ", place_of(launch), " during the rendezvous (", first_line(error),
                             "); see its own error"));
  }
}

}  // namespace duet
