#include "data/sampler.h"
#include <algorithm>
#include <numeric>
#include <gtest/gtest.h>
#include "base/error.h"
#include "tests/support/expect_error.h"

namespace duet {
namespace {

std::vector<int64_t> drain(Sampler& sampler, int64_t count) {
  std::vector<int64_t> all;
  while (true) {
    const std::vector<int64_t> some = sampler.next(count);
    if (some.empty()) return all;
    all.insert(all.end(), some.begin(), some.end());
  }
}

std::vector<int64_t> sorted(std::vector<int64_t> values) {
  std::sort(values.begin(), values.end());
  return values;
}

std::vector<int64_t> range(int64_t count) {
  std::vector<int64_t> values(static_cast<size_t>(count));
  std::iota(values.begin(), values.end(), int64_t{0});
  return values;
}

TEST(EpochSampler, GivesEverySampleOncePerEpoch) {
  for (const int64_t size : {1, 2, 3, 7, 64, 1000}) {
    for (const uint64_t seed : {uint64_t{0}, uint64_t{1}, ~uint64_t{0}}) {
      EpochSampler sampler(size, true, seed);
      for (int64_t epoch = 0; epoch < 4; ++epoch) {
        sampler.start_epoch(epoch);
        EXPECT_EQ(sorted(drain(sampler, 1 + size / 3)), range(size)) << size << " " << seed << " " << epoch;
      }
    }
  }
}

TEST(EpochSampler, OrderIsAFunctionOfSeedAndEpoch) {
  const auto order = [](uint64_t seed, int64_t epoch) {
    EpochSampler sampler(100, true, seed);
    sampler.start_epoch(epoch);
    return drain(sampler, 7);
  };
  EXPECT_EQ(order(1, 2), order(1, 2));
  EXPECT_NE(order(1, 2), order(1, 3));
  EXPECT_NE(order(1, 2), order(2, 2));
  EXPECT_NE(order(1, 2), order(2, 1));
  EXPECT_NE(order(1, 2), range(100));
}

// Written down once: another standard library or version must not change the order of a run that is resumed.
TEST(EpochSampler, OrderIsTheSameOnEveryPlatform) {
  EpochSampler sampler(8, true, 0);
  EXPECT_EQ(sampler.next(8), (std::vector<int64_t>{7, 4, 0, 1, 5, 2, 3, 6}));
}

TEST(EpochSampler, RefusesTheStateOfOtherDataAndStaysAsItIs) {
  EpochSampler saved(10, true, 0);
  EpochSampler larger(11, true, 0), unshuffled(10, false, 0);
  expect_error<CheckpointError>([&] { larger.load_state_dict(saved.state_dict()); }, {"[Sampler]", "11", "10"});
  expect_error<CheckpointError>([&] { unshuffled.load_state_dict(saved.state_dict()); }, {"shuffle"});
  StateDict bad = saved.state_dict();
  bad.set("position", StateValue(int64_t{11}));
  saved.next(3);
  expect_error<CheckpointError>([&] { saved.load_state_dict(bad); }, {"position 11"});
  expect_error<CheckpointError>([&] { saved.load_state_dict(StateDict()); });
  EXPECT_EQ(saved.next(100).size(), 7U);
}

TEST(EpochSampler, RefusesAnEmptyDataset) {
  expect_error<DataError>([] { EpochSampler(0, true, 0); }, {"0 samples"});
  expect_error<DataError>([] { InfiniteSampler(-1, true, 0); }, {"-1 samples"});
}

TEST(InfiniteSampler, GoesThroughAllSamplesAgainAndAgain) {
  InfiniteSampler sampler(5, true, 1);
  std::vector<int64_t> drawn;
  for (int i = 0; i < 10; ++i) {
    const std::vector<int64_t> some = sampler.next(3);
    ASSERT_EQ(some.size(), 3U);
    drawn.insert(drawn.end(), some.begin(), some.end());
    sampler.start_epoch(i);  // no meaning
  }
  for (auto pass = drawn.begin(); pass != drawn.end(); pass += 5) {
    EXPECT_EQ(sorted({pass, pass + 5}), range(5));
  }
  EXPECT_EQ(sampler.next(17).size(), 17U);
  EXPECT_EQ(sampler.size(), 0);
}

}  // namespace
}  // namespace duet
