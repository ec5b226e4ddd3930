#include <algorithm>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "cli/commands/commands.h"

namespace duet {
namespace {

using ::testing::ElementsAre;

// 100 bytes and 10 per sample; `speed` samples per second.
BatchSizeTrial linear(int64_t batch_size, double speed = 1) { return {batch_size, true, 100 + 10 * batch_size, speed}; }

using Trials = std::vector<BatchSizeTrial>;

std::vector<int64_t> sizes(const Trials& trials) {
  std::vector<int64_t> all;
  for (const BatchSizeTrial& trial : trials) all.push_back(trial.batch_size);
  return all;
}

int64_t largest(const Trials& trials) {
  int64_t found = 0;
  for (const BatchSizeTrial& trial : trials) found = std::max(found, trial.fits ? trial.batch_size : 0);
  return found;
}

constexpr int64_t kMany = 1 << 20, kNoLimit = int64_t{1} << 40;

TEST(BatchSizeSearch, FindsTheLargestThatFitsToASixteenth) {
  for (const int64_t limit : {1, 2, 3, 17, 31, 100, 1000, 12345}) {
    const Trials trials = search_batch_size(kMany, 100 + 10 * limit, false, [](int64_t size) { return linear(size); });
    EXPECT_LE(largest(trials), limit);
    EXPECT_GE(largest(trials) + largest(trials) / 16, limit) << limit;
    EXPECT_LT(trials.size(), 40U);
  }
  EXPECT_THAT(sizes(search_batch_size(100, 50, false, [](int64_t size) { return linear(size); })), ElementsAre(2, 1));
}

TEST(BatchSizeSearch, EndsAtTheMemoryAndAtTheSamplesThereAre) {
  const auto run = [](int64_t size) { return size <= 50 ? linear(size) : BatchSizeTrial{.batch_size = size}; };
  EXPECT_THAT(sizes(search_batch_size(kMany, kNoLimit, false, run)), ElementsAre(2, 4, 8, 16, 32, 64, 48, 56, 52, 50));
  for (const int64_t most : {1, 2, 5, 8}) {
    const Trials trials = search_batch_size(most, kNoLimit, false, run);
    EXPECT_EQ(largest(trials), most);
    EXPECT_EQ(trials.back().batch_size, most);
  }
}

TEST(BatchSizeSearch, IfCarefulRunsNothingThatNeedsTooMuchOrBringsNothing) {
  int64_t largest_run = 0;
  const Trials trials = search_batch_size(kMany, 100 + 10 * 500, true, [&](int64_t size) {
    largest_run = std::max(largest_run, size);
    return linear(size, static_cast<double>(size));
  });
  EXPECT_LE(largest_run, 500);
  EXPECT_EQ(largest(trials), largest_run);
  EXPECT_GT(largest_run, 450);
  const auto run = [](int64_t size) { return linear(size, std::min<double>(static_cast<double>(size), 15.5)); };
  EXPECT_THAT(sizes(search_batch_size(kMany, kNoLimit, true, run)), ElementsAre(2, 4, 8, 16, 32, 64));
  EXPECT_EQ(largest(search_batch_size(kMany, kNoLimit, false, run)), kMany);
}

}  // namespace
}  // namespace duet
