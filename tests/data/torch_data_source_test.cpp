#include "data/torch_data_source.h"
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/data.h>
#include "tests/support/expect_error.h"

namespace duet {
namespace {

namespace data = torch::data;
using Values = std::vector<int64_t>;

// Sample i is the number i with target 2 i.
class Numbers : public data::datasets::Dataset<Numbers> {
 public:
  explicit Numbers(size_t size) : size_(size) {}
  data::Example<> get(size_t index) override {
    const auto value = static_cast<int64_t>(index);
    return {at::scalar_tensor(value, at::kLong), at::scalar_tensor(2 * value, at::kLong)};
  }
  std::optional<size_t> size() const override { return size_; }

 private:
  size_t size_;
};

std::unique_ptr<DataSource> make_source(size_t workers, bool shuffle, uint64_t seed = 5, size_t size = 11) {
  auto dataset = Numbers(size).map(data::transforms::Stack<>());
  const auto options = data::DataLoaderOptions().batch_size(2).workers(workers);
  const TorchDataOptions ours{.seed = seed, .batches_per_epoch = 6};
  if (shuffle) {
    return make_torch_data_source(data::make_data_loader<data::samplers::RandomSampler>(std::move(dataset), options),
                                  ExampleToBatch{}, ours);
  }
  return make_torch_data_source(data::make_data_loader<data::samplers::SequentialSampler>(std::move(dataset), options),
                                ExampleToBatch{}, ours);
}

Values drain(DataSource& source, int most = 100) {
  Values all;
  for (int i = 0; i < most; ++i) {
    const std::optional<Batch> batch = source.next();
    if (!batch) break;
    EXPECT_TRUE(at::equal((*batch)["image"] * 2, (*batch)["target"]));
    for (int64_t j = 0; j < batch->size(); ++j) all.push_back((*batch)["image"][j].item<int64_t>());
  }
  return all;
}

class AnyTorchWorkers : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(TorchDataSource, AnyTorchWorkers, ::testing::Values(0, 2));

TEST_P(AnyTorchWorkers, YieldStackedExamples) {
  const auto source = make_source(static_cast<size_t>(GetParam()), false);
  for (int64_t epoch = 0; epoch < 2; ++epoch) {
    source->start_epoch(epoch);
    EXPECT_EQ(drain(*source), (Values{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}));
    EXPECT_FALSE(source->next());
  }
  EXPECT_EQ(source->batches_per_epoch(), 6);
}

TEST_P(AnyTorchWorkers, ResumeAfterEveryBatchAlsoWhenShuffled) {
  const auto workers = static_cast<size_t>(GetParam());
  const auto whole = make_source(workers, true);
  whole->start_epoch(3);
  const Values expected = drain(*whole);
  whole->start_epoch(4);
  const Values following = drain(*whole);
  EXPECT_NE(expected, following);
  for (int given = 0; given <= 6; ++given) {
    for (const bool with_start : {false, true}) {
      const auto before = make_source(workers, true);
      before->start_epoch(3);
      const Values first = drain(*before, given);
      const auto after = make_source(workers, true, 77);
      after->next();
      after->load_state_dict(before->state_dict());
      if (with_start) after->start_epoch(3);
      EXPECT_EQ(drain(*after), Values(expected.begin() + static_cast<std::ptrdiff_t>(first.size()), expected.end()));
      after->start_epoch(4);
      EXPECT_EQ(drain(*after), following);
    }
  }
}

TEST(TorchDataSource, LeavesTheDefaultGeneratorToTheModel) {
  const auto source = make_source(0, true);
  seed_all(3);
  const at::Tensor expected = at::rand({4});
  seed_all(3);
  source->start_epoch(0);
  drain(*source);
  EXPECT_TRUE(at::equal(at::rand({4}), expected));
}

TEST(TorchDataSource, RefusesAStateThatDoesNotFit) {
  const auto large = make_source(0, false), small = make_source(0, false, 5, 4);
  large->start_epoch(0);
  drain(*large);
  small->load_state_dict(large->state_dict());
  expect_error<CheckpointError>([&] { small->start_epoch(0); }, {"found 2 batches", "6"});
  expect_error<CheckpointError>([&] { small->load_state_dict(StateDict()); });
}

}  // namespace
}  // namespace duet
