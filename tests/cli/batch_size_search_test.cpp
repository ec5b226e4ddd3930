#include "cli/find/batch_size_search.h"
#include <algorithm>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace duet {
namespace {

using ::testing::ElementsAre;

// 100 bytes and 10 per sample; `speed` samples per second.
BatchSizeTrial linear(int64_t batch_size, double speed = 1) { return {batch_size, true, 100 + 10 * batch_size, speed}; }

std::vector<int64_t> sizes(const BatchSizeSearch& search) {
  std::vector<int64_t> all;
  for (const BatchSizeTrial& trial : search.trials) all.push_back(trial.batch_size);
  return all;
}

TEST(BatchSizeSearch, FindsTheLargestThatFitsToASixteenth) {
  for (const int64_t limit : {1, 2, 3, 17, 31, 100, 1000, 12345}) {
    BatchSizeSearch search{.most = 1 << 20, .bytes = 100 + 10 * limit};
    search.search([](int64_t size) { return linear(size); });
    EXPECT_LE(search.largest(), limit);
    EXPECT_GE(search.largest() + std::max<int64_t>(search.largest() / 16, 0), limit) << limit;
    EXPECT_LT(search.trials.size(), 40U);
  }
}

TEST(BatchSizeSearch, TakesRunningOutOfMemoryForTooLarge) {
  BatchSizeSearch search{.most = 1 << 20, .bytes = int64_t{1} << 40};
  search.search([](int64_t size) { return size <= 50 ? linear(size) : BatchSizeTrial{.batch_size = size}; });
  EXPECT_THAT(sizes(search), ElementsAre(2, 4, 8, 16, 32, 64, 48, 56, 52, 50));
  EXPECT_EQ(search.largest(), 50);
}

TEST(BatchSizeSearch, StopsAtTheSamplesThereAre) {
  for (const int64_t most : {1, 2, 5, 8}) {
    BatchSizeSearch search{.most = most, .bytes = 1 << 20};
    search.search([](int64_t size) { return linear(size); });
    EXPECT_EQ(search.largest(), most);
    EXPECT_EQ(search.trials.back().batch_size, most);
  }
}

TEST(BatchSizeSearch, NothingFits) {
  BatchSizeSearch search{.most = 100, .bytes = 50};
  search.search([](int64_t size) { return linear(size); });
  EXPECT_THAT(sizes(search), ElementsAre(2, 1));
  EXPECT_EQ(search.largest(), 0);
}

TEST(BatchSizeSearch, IfCarefulRunsNothingThatWouldNeedTooMuch) {
  BatchSizeSearch search{.most = 1 << 20, .bytes = 100 + 10 * 500, .is_careful = true};
  int64_t largest_run = 0;
  search.search([&](int64_t size) {
    largest_run = std::max(largest_run, size);
    return linear(size, static_cast<double>(size));
  });
  EXPECT_LE(largest_run, 500);
  EXPECT_EQ(search.largest(), largest_run);
  EXPECT_GT(largest_run, 450);
}

TEST(BatchSizeSearch, IfCarefulEndsWhereLargerBatchesBringNothing) {
  BatchSizeSearch search{.most = 1 << 20, .bytes = int64_t{1} << 40, .is_careful = true};
  search.search([](int64_t size) { return linear(size, std::min<double>(static_cast<double>(size), 15.5)); });
  EXPECT_THAT(sizes(search), ElementsAre(2, 4, 8, 16, 32, 64));
  EXPECT_EQ(search.fastest(), 16);
}

}  // namespace
}  // namespace duet
