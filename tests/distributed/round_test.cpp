#include <algorithm>
#include <future>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include "distributed/detail/rendezvous.h"

// Ranks that find each other in a store which earlier rounds have left things in.

namespace duet {
namespace {

using std::chrono::milliseconds;

struct Arrival {
  int64_t rank = 0, world_size = 1;
  milliseconds delay{0}, timeout{20'000};
};

std::vector<std::string> rounds_of(c10d::Store& store, const std::vector<Arrival>& arrivals) {
  std::vector<std::future<std::string>> found;
  for (const Arrival& arrival : arrivals) {
    found.push_back(std::async(std::launch::async, [&store, arrival] {
      std::this_thread::sleep_for(arrival.delay);
      const auto deadline = std::chrono::steady_clock::now() + arrival.timeout;
      return find_round(store, arrival.rank, arrival.world_size, deadline).name;
    }));
  }
  std::vector<std::string> names;
  for (auto& name : found) names.push_back(name.get());
  return names;
}

void expect_one_name(const std::vector<std::string>& names, std::set<std::string>& used) {
  for (const std::string& name : names) EXPECT_EQ(name, names.front());
  EXPECT_FALSE(names.front().empty());
  EXPECT_TRUE(used.insert(names.front()).second) << names.front() << " was there before";
}

// Worlds of random sizes one after the other; of some a rank never comes, so that its round must not begin.
TEST(FindRound, IsTheSameForAllWhoAreThereNow) {
  std::mt19937 random(5);
  const auto up_to = [&](int64_t most) { return std::uniform_int_distribution<int64_t>(0, most)(random); };
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::set<std::string> used;
  for (int round = 0; round < 40; ++round) {
    const int64_t size = 1 + up_to(3);
    const bool breaks = size > 1 && up_to(3) == 0;
    std::vector<Arrival> arrivals;
    for (int64_t rank = 0; rank < size; ++rank) {
      arrivals.push_back({rank, size, milliseconds(up_to(40)), milliseconds(breaks ? 300 : 20'000)});
    }
    if (breaks) arrivals.erase(arrivals.begin() + up_to(size - 1));
    const auto names = rounds_of(*store, arrivals);
    if (!breaks) {
      expect_one_name(names, used);
      continue;
    }
    for (const std::string& name : names) EXPECT_EQ(name, "") << "round " << round << " began without a rank";
  }
}

// A round that was offered, and accepted by some, before the launcher stopped all.
TEST(FindRound, DoesNotTakeAnEarlierOffer) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::set<std::string> used;
  expect_one_name(rounds_of(*store, {{0, 3}, {1, 3}, {2, 3}}), used);
  // The next ones arrive one after the other, long after each other.
  expect_one_name(rounds_of(*store, {{0, 3, milliseconds(0)}, {1, 3, milliseconds(150)}, {2, 3, milliseconds(300)}}),
                  used);
  expect_one_name(rounds_of(*store, {{2, 3, milliseconds(0)}, {1, 3, milliseconds(150)}, {0, 3, milliseconds(300)}}),
                  used);
}

TEST(FindRound, BeginsOnlyWithAllOfOneSize) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const milliseconds soon(300);
  for (const std::string& name : rounds_of(*store, {{0, 2, {}, soon}, {1, 3, {}, soon}})) EXPECT_EQ(name, "");
}

}  // namespace
}  // namespace duet
