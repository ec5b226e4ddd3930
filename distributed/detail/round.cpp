#include "distributed/detail/round.h"
#include <random>
#include <utility>
#include <c10/util/StringUtil.h>
#include "distributed/detail/store_text.h"

namespace duet {

namespace {

using Clock = std::chrono::steady_clock;

std::string ticket_key(int64_t rank) { return "ticket/" + std::to_string(rank); }
std::string accepted_key(int64_t rank) { return "accepted/" + std::to_string(rank); }

std::string new_ticket(int64_t world_size) {
  std::random_device random;
  return c10::str(world_size, ".", random(), ".", random());
}

// "NAME ticket-of-0 ticket-of-1 ..."
std::vector<std::string> words_of(const std::string& offer) {
  std::vector<std::string> words;
  std::size_t begin = 0;
  while (begin < offer.size()) {
    const std::size_t end = std::min(offer.find(' ', begin), offer.size());
    words.push_back(offer.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
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
      offer = c10::str(own, ".", ++offers, tickets);
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

}  // namespace duet
