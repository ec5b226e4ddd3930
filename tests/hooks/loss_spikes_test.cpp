#include "hooks/detail/loss_spikes.h"
#include <limits>
#include <gtest/gtest.h>

namespace duet {
namespace {

std::vector<double> counted(std::size_t from, std::size_t to) {
  std::vector<double> losses;
  for (std::size_t i = from; i <= to; ++i) losses.push_back(static_cast<double>(i));
  return losses;
}

// 1 to 9: the median is 5, the distances 0 1 1 2 2 3 3 4 4 have the median 2.
TEST(LossSpikes, ScoreIsTheDistanceInDeviations) {
  LossSpikes spikes(9, 3.0), resumed(8, 3.0);
  EXPECT_FALSE(spikes.find(counted(1, 8)));
  EXPECT_FALSE(LossSpikes(spikes).find({1e6})) << "too few are known";
  EXPECT_FALSE(spikes.find({9.0}));
  const auto found = spikes.find({5.0, 20.0});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->at, 1U);
  EXPECT_EQ(found->loss, 20.0);
  EXPECT_EQ(found->median, 5.0);  // of 2 to 9 and 5
  EXPECT_NEAR(found->score, 15.0 / (1.4826 * 1.0 * 2.0), 1e-12);
  resumed.load_state_dict(spikes.state_dict());
  EXPECT_EQ(resumed.find({100.0})->median, 5.5);  // of 3 to 9 and 5
}

TEST(LossSpikes, NeitherSpikesNorInfinitiesAreAMeasure) {
  LossSpikes spikes(10, 3.0);
  spikes.find(counted(1, 10));
  for (int i = 0; i < 30; ++i) {
    EXPECT_TRUE(spikes.find({1000.0})) << i;
    EXPECT_FALSE(spikes.find({std::numeric_limits<double>::quiet_NaN()}));
    EXPECT_FALSE(spikes.find({std::numeric_limits<double>::infinity()}));
  }
}

}  // namespace
}  // namespace duet
