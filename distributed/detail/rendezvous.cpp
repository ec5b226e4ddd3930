#include "distributed/detail/rendezvous.h"
#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <vector>
#include <c10/util/StringUtil.h>
#include <nlohmann/json.hpp>
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

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

std::string place_of(const Launch& launch) { return concat_text(launch.master_address, ":", launch.master_port); }

std::string twice_text(const Launch& launch) {
  return c10::str("[Launch] two processes say they are rank ", launch.rank, " of ", launch.world_size, " at ",
                  place_of(launch), ", expected each rank once; give every process a rank of its own");
}

template <class E>
std::string packed(const std::string& text) {
  return packed_error(std::make_exception_ptr(E(text)));
}

// What a rank says of itself, as it stands in the store. Its ticket tells it from what that rank said in an earlier
// round.
struct Hello {
  std::string ticket, world_size;
  std::string kind, gpu, gpu_name;  // of a failed rank no device is known: empty
  std::string failure;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Hello, ticket, world_size, kind, gpu, gpu_name, failure)

Hello hello_of(const Launch& launch, const Participant& self) {
  std::random_device random;
  Hello hello{.ticket = concat_text(random(), ".", random()), .world_size = std::to_string(launch.world_size)};
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

// What rank 0 has found, for those whose tickets it has seen.
struct Offer {
  std::string name{};                  // of the round; empty: there is none
  std::vector<std::string> tickets{};  // by rank
  std::string failure{};               // the packed error of all ranks; empty: they fit together

  bool holds(int64_t rank, const std::string& ticket) const {
    return rank < std::ssize(tickets) && tickets[static_cast<std::size_t>(rank)] == ticket;
  }
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Offer, name, tickets, failure)

// Either as it stands in the store; what is not there is empty.
template <class T>
std::string stored(const T& said) {
  return nlohmann::json(said).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}
template <class T>
T read_from(c10d::Store& store, const std::string& key) {
  const auto json = nlohmann::json::parse(text_at(store, key), nullptr, /*allow_exceptions=*/false);
  return json.is_object() ? json.get<T>() : T();
}

// What is wrong between rank 0 and another one; empty: they fit.
std::string contradiction(const Hello& first, const Hello& other, int64_t rank) {
  if (other.world_size != first.world_size) {
    return c10::str("[Launch] rank ", rank, " was started for ", other.world_size, " processes and rank 0 for ",
                    first.world_size, ", expected the same number; start them with one command");
  }
  const bool have_devices = other.failure.empty() && first.failure.empty();
  if (!have_devices || other.kind == first.kind) return {};
  return c10::str("[Launch] rank ", rank, " trains on ", other.kind, " and rank 0 on ", first.kind,
                  ", expected the same kind of device; set it to one that all of them have");
}

// The first failure that is known, for all ranks; empty: there is none.
std::string failure_among(const std::vector<Hello>& all) {
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (!all[rank].failure.empty()) return packed_error_of(static_cast<int64_t>(rank), all[rank].failure);
  }
  return {};
}

// Of ranks that are all there, and alike.
std::string failure_of_all(const std::vector<Hello>& all) {
  std::string failure = failure_among(all);
  if (!failure.empty()) return failure;
  std::vector<GpuOfRank> gpus;
  for (const Hello& hello : all) gpus.push_back({hello.gpu, hello.gpu_name});
  const std::string shared = find_shared_gpu(gpus);
  return shared.empty() ? shared : packed<ConfigError>("[Launch] " + shared);
}

std::string hello_key(int64_t rank) { return "hello/" + std::to_string(rank); }
std::string heard_key(int64_t rank) { return "heard/" + std::to_string(rank); }  // the name of the offer
constexpr const char *kOffer = "offer", *kBegun = "begun", *kTwice = "twice";

// One rank's part: every rank says hello, rank 0 looks whether all are there and fit together, and offers what it has
// found. In a store of a launcher's, which may hold the hellos of an earlier round, an offer counts when all who are
// in it have heard it; if one of them comes only now, there is another offer.
class Rendezvous {
 public:
  Rendezvous(const Launch& launch, const Participant& self, c10d::Store& store, milliseconds timeout)
      : launch_(launch),
        own_(hello_of(launch, self)),
        store_(store),
        timeout_(timeout),
        deadline_(Clock::now() + timeout) {}

  // Returns the name of the round.
  std::string join() {
    say_hello();
    const Offer offer = launch_.rank == 0 ? lead() : follow();
    if (offer.failure.empty()) return offer.name;
    try {
      stay_until_heard(offer);
    } catch (const std::exception&) {
      // The store is gone, and the failure says more.
    }
    throw_packed(offer.failure);
  }

 private:
  void say_hello() {
    const std::string key = hello_key(launch_.rank);
    if (launch_.agent_store) return set_text(store_, key, stored(own_));
    if (set_first(store_, key, stored(own_)) == stored(own_)) return;
    set_first(store_, kTwice, twice_text(launch_));  // who is still here hears of it
    throw ConfigError(twice_text(launch_));
  }

  // A launcher ends a round's processes before it starts others of the same ranks.
  void check_hello() {
    if (launch_.agent_store && text_at(store_, hello_key(launch_.rank)) != stored(own_))
      throw ConfigError(twice_text(launch_));
  }

  Offer lead() {
    Offer offer;
    for (int64_t offers = 0; Clock::now() < deadline_; interval_.sleep()) {
      check_hello();
      std::optional<Offer> found = look();
      if (!found) continue;
      if (found->tickets != offer.tickets || found->failure != offer.failure) {
        offer = *std::move(found);
        offer.name = concat_text(own_.ticket, ".", ++offers);
        set_text(store_, kOffer, stored(offer));
      }
      if (launch_.agent_store && !is_heard(offer)) continue;
      set_text(store_, kBegun, offer.name);
      return offer;
    }
    offer.failure = late();
    offer.name = own_.ticket + ".late";
    set_text(store_, kOffer, stored(offer));
    set_text(store_, kBegun, offer.name);
    return offer;
  }

  // Nothing as long as somebody is missing.
  std::optional<Offer> look() {
    const std::string twice = launch_.agent_store ? std::string() : text_at(store_, kTwice);
    if (!twice.empty()) return Offer{.failure = packed<ConfigError>(twice)};
    Offer offer;
    std::vector<Hello> all;
    std::string wrong;  // the first; in a launcher's store an offer is heard by those whose tickets it has
    for (int64_t rank = 0; rank < launch_.world_size && (wrong.empty() || launch_.agent_store); ++rank) {
      all.push_back(hello_at(rank));
      if (all.back().ticket.empty()) return std::nullopt;
      offer.tickets.push_back(all.back().ticket);
      if (wrong.empty()) wrong = contradiction(all.front(), all.back(), rank);
    }
    offer.failure = wrong.empty() ? failure_of_all(all) : packed<ConfigError>(wrong);
    return offer;
  }

  // Without a ticket: it is not there, or only in a round of another size.
  Hello hello_at(int64_t rank) {
    Hello hello = read_from<Hello>(store_, hello_key(rank));
    return launch_.agent_store && hello.world_size != own_.world_size ? Hello() : hello;
  }

  bool is_heard(const Offer& offer) {
    for (int64_t rank = 1; rank < launch_.world_size; ++rank) {
      if (text_at(store_, heard_key(rank)) != offer.name) return false;
    }
    return true;
  }

  Offer follow() {
    for (std::string heard; Clock::now() < deadline_; interval_.sleep()) {
      check_hello();
      const Offer offer = read_from<Offer>(store_, kOffer);
      const bool is_mine = offer.holds(launch_.rank, own_.ticket);
      if (offer.name.empty() || (launch_.agent_store && !is_mine)) continue;
      if (heard != offer.name) set_text(store_, heard_key(launch_.rank), heard = offer.name);
      if (text_at(store_, kBegun) != offer.name) continue;
      if (is_mine || !offer.failure.empty()) return offer;
      // The others do not wait for a rank beyond their world.
      const Hello first{.world_size = std::to_string(offer.tickets.size())};
      return {.failure = packed<ConfigError>(contradiction(first, own_, launch_.rank))};
    }
    return {.failure = late()};
  }

  // Who has failed says more than who is missing.
  std::string late() {
    std::vector<Hello> all;
    std::string missing;
    const std::string offer = read_from<Offer>(store_, kOffer).name;
    for (int64_t rank = 0; rank < launch_.world_size; ++rank) {
      all.push_back(hello_at(rank));
      const bool heard = rank == 0 || !launch_.agent_store || text_at(store_, heard_key(rank)) == offer;
      if (all.back().ticket.empty() || !heard) missing += c10::str(missing.empty() ? "rank " : ", rank ", rank);
    }
    const std::string failure = launch_.agent_store ? std::string() : failure_among(all);
    if (!failure.empty()) return failure;
    return packed<PeerError>(c10::str("[Launch] ", missing.empty() ? "a rank" : missing, " of ", launch_.world_size,
                                      " did not come to ", place_of(launch_), " within ", timeout_.count() / 1000.0,
                                      " s; check that it was started, or raise the start timeout"));
  }

  // At the end of a group that has failed: until all know why, but not for long, since some may be lost; and a moment
  // in any case, since the store may end with this rank, and the launcher may end them all.
  void stay_until_heard(const Offer& offer) {
    const auto now = Clock::now();
    const auto earliest = now + milliseconds(500), latest = now + milliseconds(2000);
    for (PollInterval interval; Clock::now() < latest; interval.sleep()) {
      if (Clock::now() >= earliest && is_heard(offer)) return;
    }
  }

  const Launch& launch_;
  Hello own_;
  c10d::Store& store_;
  milliseconds timeout_;
  Clock::time_point deadline_;
  PollInterval interval_;
};

}  // namespace

std::string rendezvous(const Launch& launch, const Participant& self, const c10::intrusive_ptr<c10d::Store>& store,
                       milliseconds timeout) {
  try {
    c10d::PrefixStore own("duet", store);
    return "duet/" + Rendezvous(launch, self, own, timeout).join();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw PeerError(c10::str("[Launch] rank ", launch.rank, " lost ", launch.agent_store ? "the launcher" : "rank 0",
                             " at ", place_of(launch), " during the rendezvous (", first_line(error),
                             "); see its own error"));
  }
}

}  // namespace duet
