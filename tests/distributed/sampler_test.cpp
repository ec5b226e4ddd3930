#include "data/sampler.h"
#include <algorithm>
#include <random>
#include <ATen/ops/arange.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "data/data_loader.h"
#include "data/dataset.h"

namespace duet {
namespace {

using Indices = std::vector<int64_t>;

struct Case {
  int64_t size = 1, world = 1, batch = 1;
  bool drop_last = false;
  uint64_t seed = 0;

  std::unique_ptr<Sampler> whole() const { return std::make_unique<EpochSampler>(size, /*shuffle=*/true, seed); }
  std::unique_ptr<Sampler> share(int64_t rank) const {
    return std::make_unique<DistributedSampler>(whole(), rank, world, drop_last);
  }
  std::vector<std::unique_ptr<Sampler>> shares() const {
    std::vector<std::unique_ptr<Sampler>> all;
    for (int64_t rank = 0; rank < world; ++rank) all.push_back(share(rank));
    return all;
  }
};

// Of all ranks, one after another; `largest` and `smallest` are those of a rank.
struct GlobalStep {
  Indices all;
  int64_t largest = 0, smallest = 0;
};

GlobalStep next_step(const std::vector<std::unique_ptr<Sampler>>& shares, int64_t batch) {
  GlobalStep step;
  step.smallest = batch;
  for (const auto& share : shares) {
    const Indices own = share->next(batch);
    const auto count = static_cast<int64_t>(own.size());
    step.largest = std::max(step.largest, count);
    step.smallest = std::min(step.smallest, count);
    step.all.insert(step.all.end(), own.begin(), own.end());
  }
  return step;
}

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.size << " samples, " << c.world << " ranks, batch " << c.batch << (c.drop_last ? ", drop_last" : "");
}

// Every global batch is the one that a single process would take, in its order, each sample once.
void check_epoch(const Case& c, const std::vector<std::unique_ptr<Sampler>>& shares, int64_t epoch) {
  const std::unique_ptr<Sampler> whole = c.whole();
  whole->start_epoch(epoch);
  for (const auto& share : shares) share->start_epoch(epoch);
  const int64_t global = c.world * c.batch;
  const int64_t steps = c.drop_last ? c.size / global : (c.size + global - 1) / global;
  for (int64_t i = 0; i < steps; ++i) {
    const GlobalStep step = next_step(shares, c.batch);
    ASSERT_EQ(step.all, whole->next(global)) << c << ", step " << i;
    ASSERT_LE(step.largest - step.smallest, 1) << c << ", step " << i;
  }
  ASSERT_TRUE(next_step(shares, c.batch).all.empty()) << c;
}

TEST(DistributedSampler, SharesAreDisjointAndTogetherTheBatchesOfOneProcess) {
  std::mt19937 draw(11);
  const auto below = [&draw](int64_t bound) { return static_cast<int64_t>(draw() % static_cast<uint32_t>(bound)); };
  for (int i = 0; i < 500; ++i) {
    const Case c{.size = 1 + below(200),
                 .world = 1 + below(9),
                 .batch = 1 + below(12),
                 .drop_last = below(2) == 1,
                 .seed = draw()};
    if (c.drop_last && c.size < c.world) {  // somebody would never get a sample
      EXPECT_THROW(c.shares(), DataError) << c;
      continue;
    }
    const auto shares = c.shares();
    for (int64_t epoch = 0; epoch < 3; ++epoch) ASSERT_NO_FATAL_FAILURE(check_epoch(c, shares, epoch));
  }
}

TEST(DistributedSampler, EveryRankCountsTheSameBatchesPerEpoch) {
  for (const bool drop_last : {false, true}) {
    for (const int64_t size : {16, 17, 23, 24, 31}) {
      const Case c{.size = size, .world = 4, .batch = 2, .drop_last = drop_last};
      const auto data = std::make_shared<TensorDataset>(NamedTensors{{"x", at::arange(size)}});
      for (int64_t rank = 0; rank < c.world; ++rank) {
        DataLoader loader(data, c.share(rank), {.batch_size = c.batch, .drop_last = drop_last});
        const int64_t batches = drop_last ? size / 8 : (size + 7) / 8;
        EXPECT_EQ(loader.batches_per_epoch(), batches) << c << ", rank " << rank;
        loader.next();
        EXPECT_EQ(loader.batches_left(), batches - 1) << c << ", rank " << rank;
      }
    }
  }
}

TEST(DistributedSampler, SharesOutASamplerThatNeverEnds) {
  const auto endless = [] { return std::make_unique<InfiniteSampler>(10, /*shuffle=*/true, 6); };
  std::vector<std::unique_ptr<Sampler>> shares;
  for (int64_t rank = 0; rank < 3; ++rank) shares.push_back(std::make_unique<DistributedSampler>(endless(), rank, 3));
  const auto whole = endless();
  for (int i = 0; i < 20; ++i) {
    const GlobalStep step = next_step(shares, 4);
    ASSERT_EQ(step.smallest, 4);
    ASSERT_EQ(step.all, whole->next(12));
  }
  EXPECT_EQ(shares.front()->size(), 0);
}

}  // namespace
}  // namespace duet
