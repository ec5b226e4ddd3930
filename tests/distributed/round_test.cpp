#include <future>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include "base/error.h"
#include "distributed/detail/rendezvous.h"

// Ranks that find each other in a launcher's store, which earlier rounds have left things in.

namespace duet {
namespace {

using std::chrono::milliseconds;

struct Arrival {
  int64_t rank = 0, world_size = 1;
  milliseconds delay{0};
};

// Where each finds the others; empty for one who does not in time.
std::vector<std::string> rounds_of(const c10::intrusive_ptr<c10d::Store>& store, const std::vector<Arrival>& arrivals,
                                   milliseconds timeout = milliseconds(20'000)) {
  std::vector<std::future<std::string>> found;
  for (const Arrival& arrival : arrivals) {
    found.push_back(std::async(std::launch::async, [=] {
      std::this_thread::sleep_for(arrival.delay);
      const Launch launch{.rank = arrival.rank, .world_size = arrival.world_size, .agent_store = true};
      try {
        return rendezvous(launch, {}, store, timeout);
      } catch (const PeerError&) {
        return std::string();
      }
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
TEST(Rendezvous, IsOfAllWhoAreThereNow) {
  std::mt19937 random(5);
  const auto up_to = [&](int64_t most) { return std::uniform_int_distribution<int64_t>(0, most)(random); };
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::set<std::string> used;
  for (int round = 0; round < 20; ++round) {
    const int64_t size = 1 + up_to(3);
    const bool breaks = size > 1 && up_to(3) == 0;
    std::vector<Arrival> arrivals;
    for (int64_t rank = 0; rank < size; ++rank) arrivals.push_back({rank, size, milliseconds(up_to(300))});
    if (breaks) arrivals.erase(arrivals.begin() + up_to(size - 1));
    const auto names = rounds_of(store, arrivals, milliseconds(breaks ? 500 : 20'000));
    if (!breaks) expect_one_name(names, used);
    for (const std::string& name : names) EXPECT_EQ(name.empty(), breaks) << "round " << round;
  }
}

TEST(Rendezvous, BeginsOnlyWithAllOfOneSize) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  for (const std::string& name : rounds_of(store, {{0, 2}, {1, 3}}, milliseconds(300))) EXPECT_EQ(name, "");
}

}  // namespace
}  // namespace duet
