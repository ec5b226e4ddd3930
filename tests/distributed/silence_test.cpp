#include <gtest/gtest.h>

#include "distributed/detail/silence.h"

namespace duet {
namespace {

using namespace std::chrono_literals;

// Looks every `pause` for `total`, from `begin` on.
void look(Silence& silence, Silence::Clock::time_point& now, std::chrono::milliseconds pause,
          std::chrono::milliseconds total) {
  for (auto passed = 0ms; passed < total; passed += pause) silence.look(now += pause, /*heard=*/false);
}

TEST(Silence, IsTimeHoweverOftenItIsLookedAt) {
  for (const auto pause : {10ms, 50ms, 100ms, 200ms}) {
    Silence silence;
    Silence::Clock::time_point now{1h};
    silence.look(now, true);
    look(silence, now, pause, 2s);
    EXPECT_EQ(silence.length(), 2s) << pause.count();
  }
}

TEST(Silence, EndsWithAWord) {
  Silence silence;
  Silence::Clock::time_point now{1h};
  silence.look(now, false);
  look(silence, now, 100ms, 5s);
  silence.look(now += 100ms, true);
  EXPECT_EQ(silence.length(), 0s);
  look(silence, now, 100ms, 300ms);
  EXPECT_EQ(silence.length(), 300ms);
}

// A process that was stopped for a minute does not know who spoke meanwhile.
TEST(Silence, HardlyGrowsWhileNobodyListens) {
  Silence silence;
  Silence::Clock::time_point now{1h};
  silence.look(now, true);
  silence.look(now += 60s, false);
  EXPECT_EQ(silence.length(), Silence::kLongestPause);
}

}  // namespace
}  // namespace duet
