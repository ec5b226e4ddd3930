#include "data/data_loader.h"
#include <atomic>
#include <chrono>
#include <future>
#include <thread>
#include <ATen/ops/tensor.h>
#include <c10/util/StringUtil.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "tests/support/expect_error.h"

namespace duet {
namespace {

using Values = std::vector<std::vector<int64_t>>;

// Sample i is the number i. Early batches take longest, so that workers finish in another order; `bad` throws.
class Numbers : public Dataset {
 public:
  explicit Numbers(int64_t size, std::vector<int64_t> bad = {}) : size_(size), bad_(std::move(bad)) {}
  int64_t size() const override { return size_; }
  Batch get(const std::vector<int64_t>& indices) const override {
    const int call = calls_++;
    if (call < 6) std::this_thread::sleep_for(std::chrono::milliseconds(6 - call));
    for (const int64_t index : indices) {
      for (const int64_t bad : bad_) {
        if (index == bad) throw DataError("sample " + std::to_string(index) + " is bad");
      }
    }
    return {{"value", at::tensor(indices)}};
  }
  int calls() const { return calls_; }

 private:
  int64_t size_;
  std::vector<int64_t> bad_;
  mutable std::atomic<int> calls_{0};
};

std::vector<int64_t> values(const Batch& batch) {
  const at::Tensor& tensor = batch["value"];
  return {tensor.const_data_ptr<int64_t>(), tensor.const_data_ptr<int64_t>() + tensor.numel()};
}

Values drain(DataLoader& loader, int64_t most = 1000) {
  Values all;
  while (static_cast<int64_t>(all.size()) < most) {
    const std::optional<Batch> batch = loader.next();
    if (!batch) break;
    all.push_back(values(*batch));
  }
  return all;
}

std::unique_ptr<DataLoader> make_loader(int workers, bool shuffle = true, int64_t size = 23, bool drop_last = false,
                                        std::vector<int64_t> bad = {}) {
  return std::make_unique<DataLoader>(
      std::make_shared<Numbers>(size, std::move(bad)), std::make_unique<EpochSampler>(size, shuffle, 7),
      DataLoaderOptions{.batch_size = 4, .num_workers = workers, .prefetch = 2, .drop_last = drop_last});
}

class AnyWorkers : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(DataLoader, AnyWorkers, ::testing::Values(0, 1, 3));

TEST_P(AnyWorkers, GiveTheSamplersOrder) {
  const auto loader = make_loader(GetParam());
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    EpochSampler sampler(23, true, 7);
    sampler.start_epoch(epoch);
    loader->start_epoch(epoch);
    const Values batches = drain(*loader);
    ASSERT_EQ(batches.size(), 6U);
    for (const std::vector<int64_t>& batch : batches) EXPECT_EQ(batch, sampler.next(4));
    EXPECT_FALSE(loader->next());
  }
  EXPECT_EQ(loader->batches_per_epoch(), 6);
}

TEST_P(AnyWorkers, ResumeAfterEveryBatch) {
  for (const bool drop_last : {false, true}) {
    const auto whole = make_loader(GetParam(), true, 23, drop_last);
    whole->start_epoch(1);
    const Values expected = drain(*whole);
    whole->start_epoch(2);
    const Values following = drain(*whole);
    for (size_t given = 0; given <= expected.size(); ++given) {
      for (const bool with_start : {false, true}) {
        const auto before = make_loader(GetParam(), true, 23, drop_last);
        before->start_epoch(1);
        drain(*before, static_cast<int64_t>(given));
        const auto after = make_loader((GetParam() + 1) % 3, true, 23, drop_last);  // any number goes on
        after->next();
        after->load_state_dict(before->state_dict());
        if (with_start) after->start_epoch(1);
        EXPECT_EQ(drain(*after), Values(expected.begin() + static_cast<std::ptrdiff_t>(given), expected.end()));
        after->start_epoch(2);
        EXPECT_EQ(drain(*after), following);
      }
    }
  }
}

TEST_P(AnyWorkers, GoOnInAnEndlessOrderAcrossEpochsAndResume) {
  const auto make = [&] {
    return std::make_unique<DataLoader>(std::make_shared<Numbers>(10), std::make_unique<InfiniteSampler>(10, true, 3),
                                        DataLoaderOptions{.batch_size = 3, .num_workers = GetParam()});
  };
  const auto loader = make();
  InfiniteSampler sampler(10, true, 3);
  EXPECT_EQ(loader->batches_per_epoch(), 0);
  for (int64_t epoch = 0; epoch < 4; ++epoch) {
    loader->start_epoch(epoch);
    for (int i = 0; i < 5; ++i) EXPECT_EQ(values(loader->next().value()), sampler.next(3));
  }
  const auto resumed = make();
  resumed->load_state_dict(loader->state_dict());
  resumed->start_epoch(4);
  EXPECT_EQ(drain(*resumed, 5), drain(*loader, 5));
}

TEST_P(AnyWorkers, ThrowWhereTheBadBatchWouldCome) {
  const auto loader = make_loader(GetParam(), false, 23, false, {9, 13});
  for (int epoch = 0; epoch < 2; ++epoch) {
    loader->start_epoch(epoch);
    EXPECT_EQ(drain(*loader, 2).size(), 2U);
    expect_error<DataError>([&] { loader->next(); }, {"sample 9 is bad"});
    expect_error<DataError>([&] { loader->next(); }, {"sample 13 is bad"});
    EXPECT_EQ(values(loader->next().value()), (std::vector<int64_t>{16, 17, 18, 19}));
  }
}

// They would be those of others.
TEST_P(AnyWorkers, GiveNoIdsWhereASampleIsLeftOut) {
  struct Fewer : Numbers {
    using Numbers::Numbers;
    Batch get(const std::vector<int64_t>& indices) const override {
      return Numbers::get({indices.begin() + 1, indices.end()});
    }
  };
  DataLoader loader(std::make_shared<Fewer>(8), {.batch_size = 4, .num_workers = GetParam()});
  EXPECT_EQ(loader.next()->sample_ids(), std::vector<int64_t>());
  EXPECT_EQ(make_loader(GetParam())->next()->sample_ids().size(), 4U);
}

TEST_P(AnyWorkers, RefuseAForeignStateAndGoOn) {
  const auto loader = make_loader(GetParam());
  const auto other = make_loader(0, true, 24);
  const Values expected = drain(*make_loader(0));
  drain(*loader, 2);
  expect_error<CheckpointError>([&] { loader->load_state_dict(other->state_dict()); }, {"24"});
  EXPECT_EQ(drain(*loader), Values(expected.begin() + 2, expected.end()));
}

TEST(DataLoader, EndsWhileWorkersAreBusy) {
  for (int i = 0; i < 50; ++i) {
    const auto loader = make_loader(3);
    if (i % 2 == 1) loader->next();
    if (i % 5 == 1) loader->start_epoch(1);
  }
}

// Gives nothing before the gate is open.
class GatedNumbers : public Numbers {
 public:
  GatedNumbers(int64_t size, std::shared_future<void> gate) : Numbers(size), gate_(std::move(gate)) {}
  Batch get(const std::vector<int64_t>& indices) const override {
    gate_.wait();
    return Numbers::get(indices);
  }

 private:
  std::shared_future<void> gate_;
};

TEST_P(AnyWorkers, AWaitThatIsBrokenOffLeavesTheSourceWhereItWas) {
  std::promise<void> gate;
  DataLoader loader(std::make_shared<GatedNumbers>(23, gate.get_future().share()),
                    std::make_unique<EpochSampler>(23, true, 7),
                    {.batch_size = 4, .num_workers = GetParam(), .prefetch = 2});
  loader.start_epoch(0);
  const StateDict before = loader.state_dict();
  int asked = 0;
  loader.set_should_stop([&] { return ++asked == 2; });
  EXPECT_FALSE(loader.next());
  EXPECT_EQ(asked, 2);
  EXPECT_EQ(loader.state_dict().values(), before.values());
  EXPECT_EQ(loader.batches_left(), 6);
  gate.set_value();
  const auto plain = make_loader(0);
  plain->start_epoch(0);
  EXPECT_EQ(drain(loader), drain(*plain));
}

TEST(DataLoader, ReadsAheadNoFurtherThanAsked) {
  const auto dataset = std::make_shared<Numbers>(1000);
  DataLoader loader(dataset, std::make_unique<EpochSampler>(1000, false, 0),
                    {.batch_size = 1, .num_workers = 2, .prefetch = 3});
  loader.next();
  constexpr int kAhead = 1 + 2 * 3;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (dataset->calls() < kAhead && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // for one too many
  EXPECT_EQ(dataset->calls(), kAhead);
}

}  // namespace
}  // namespace duet
