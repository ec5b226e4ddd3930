#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <duet/core/data_loader.h>
#include <duet/core/dataset.h>
#include <duet/core/distributed_sampler.h>

#include <cmath>

#include "../support/ranks.h"
#include "../support/toy_tasks.h"
#include "../support/trainer_runs.h"

namespace duet {
namespace {

using testing::expect_no_error;
using testing::expect_same_on_all;
using testing::make_trainer;
using testing::RankResult;
using testing::run_ranks;
using testing::ToyTask;

// The samples of one batch that a toy task draws, one by one.
class ToyDataset : public Dataset {
 public:
  ToyDataset(const ToyTask& task, int64_t size) : all_(task.batch(size, 7)), size_(size) {}
  int64_t size() const override { return size_; }
  Batch get(const std::vector<int64_t>& indices) const override {
    Batch batch;
    const at::Tensor chosen = at::tensor(indices, at::kLong);
    for (const auto& [name, values] : all_.items()) batch.set(name, values.index_select(0, chosen));
    return batch;
  }

 private:
  Batch all_;
  int64_t size_;
};

struct TrainingRun {
  std::string mode = "eager";
  int64_t samples = 106;  // 13 global batches of 8 and a tail of 2
  int64_t global_batch = 8;
  int64_t accumulate = 1;
  int64_t updates = 100;
  TrainerOptions options{};
};

std::unique_ptr<DataLoader> loader_for(const ToyTask& task, const TrainingRun& run, const Communicator* ranks) {
  std::unique_ptr<Sampler> sampler = std::make_unique<EpochSampler>(run.samples, /*shuffle=*/true, /*seed=*/3);
  const int64_t world = ranks ? ranks->world_size() : 1;
  if (ranks) sampler = std::make_unique<DistributedSampler>(std::move(sampler), ranks->rank(), world);
  return std::make_unique<DataLoader>(std::make_shared<ToyDataset>(task, run.samples), std::move(sampler),
                                      DataLoaderOptions{.batch_size = run.global_batch / world});
}

NamedTensors train(const ToyTask& task, TrainingRun run, const std::shared_ptr<Communicator>& ranks) {
  seed_all(1);
  run.options.loop.max_updates = run.updates;
  run.options.loop.accumulate = run.accumulate;
  run.options.distributed.communicator = ranks;
  const auto trainer = make_trainer(run.mode, task.make(), run.options);
  const auto data = loader_for(task, run, ranks.get());
  trainer->train(*data);
  NamedTensors result;
  const StateDict weights = trainer->weights();
  for (const auto& [name, tensor] : weights.tensors()) result.emplace_back(name, tensor);
  result.emplace_back("the loss", trainer->output().loss);
  return result;
}

double largest_difference(const RankResult& a, const RankResult& b) {
  double largest = 0;
  for (const auto& [name, tensor] : a.tensors) {
    largest = std::max(largest, (tensor.to(at::kDouble) - b.at(name).to(at::kDouble)).abs().max().item<double>());
  }
  return largest;
}

class DistributedParity : public ::testing::TestWithParam<int64_t> {};

TEST_P(DistributedParity, WeightsAreThoseOfOneProcessWithTheGlobalBatch) {
  for (const std::string mode : {"eager", "graph"}) {
    TrainingRun run{.mode = mode};
    run.options.optimizer = {.type = "SGD", .lr = 0.05, .momentum = 0.9};
    const ToyTask task = testing::partial_task();
    const auto body = [&](const std::shared_ptr<Communicator>& ranks) { return train(task, run, ranks); };
    const auto many = run_ranks(GetParam(), body);
    expect_same_on_all(many);
    const auto one = run_ranks(1, body);
    expect_no_error(one);
    EXPECT_LE(largest_difference(one.front(), many.front()), 1e-6) << mode;
  }
}

TEST_P(DistributedParity, ModesGiveTheSameBits) {
  for (const ToyTask& task : testing::all_toy_tasks()) {
    for (const int64_t accumulate : {1, 3}) {
      TrainingRun run{.accumulate = accumulate, .updates = 30};
      run.options.optimizer = {.type = "AdamW", .lr = 1e-2};
      run.options.clip_grad = ClipGradOptions{.max_norm = 0.5};
      const auto eager = run_ranks(GetParam(), [&](const auto& ranks) { return train(task, run, ranks); });
      run.mode = "graph";
      const auto graph = run_ranks(GetParam(), [&](const auto& ranks) { return train(task, run, ranks); });
      expect_same_on_all(eager);
      expect_same_on_all(graph);
      if (HasFailure()) FAIL() << task.name << ", accumulate " << accumulate;
      for (const auto& [name, tensor] : eager.front().tensors) {
        EXPECT_TRUE(testing::same_bits(tensor, graph.front().at(name))) << task.name << ": " << name;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, DistributedParity, ::testing::Values(2, 4));

}  // namespace
}  // namespace duet
