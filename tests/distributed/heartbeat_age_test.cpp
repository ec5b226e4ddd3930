#include <gtest/gtest.h>
#include "distributed/detail/peer_watch.h"

namespace duet {
namespace {

using namespace std::chrono_literals;

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
  }
}

TEST(HeartbeatAge, EndsWithAWord) {
  HeartbeatAge age;
  HeartbeatAge::Clock::time_point now{1h};
  age.look(now, false);
  look(age, now, 100ms, 5s);
  age.look(now += 100ms, true);
  EXPECT_EQ(age.length(), 0s);
  look(age, now, 100ms, 300ms);
  EXPECT_EQ(age.length(), 300ms);
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
