#include <cstdlib>
#include <gtest/gtest.h>
#include "base/error.h"
#include "distributed/communicator.h"
#include "tests/support/log_lines.h"
#include "tests/support/rank_data.h"
#include "tests/support/ranks.h"
#include "tests/support/toy_tasks.h"
#include "tests/support/trainer_runs.h"

// What a user's program writes: init_distributed(), a trainer, a DataLoader.

namespace duet {
namespace {

using namespace testing;

InitOptions options_of(const Launch& launch) {
  InitOptions options{.device = "cpu"};
  options.launch = {.rank = launch.rank, .world_size = launch.world_size, .master_port = launch.master_port};
  return options;
}

struct Case {
  int64_t world_size = 1;
  bool drop_last = false;
  int num_workers = 0;
  const char* mode = "eager";
};

NamedTensors train(const Case& c, bool own_sampler, const Launch& launch) {
  const std::shared_ptr<Communicator> ranks = init_distributed(options_of(launch));
  seed_all(0);
  TrainerOptions options;  // knows the ranks by itself
  options.optimizer = SGD{.lr = 0.05, .momentum = 0.9};
  options.loop.max_epochs = 2;
  const auto trainer = make_trainer(c.mode, partial_task().make(), options);
  const auto samples = std::make_shared<TensorDataset>(numbered_samples(partial_task(), 41));
  DataLoaderOptions loading{
      .batch_size = 12 / launch.world_size, .seed = 3, .num_workers = c.num_workers, .drop_last = c.drop_last};
  std::unique_ptr<DataLoader> data;
  if (own_sampler) {
    loading.shuffle = true;
    data = std::make_unique<DataLoader>(samples, loading);
  } else {
    auto sampler = std::make_unique<DistributedSampler>(std::make_unique<EpochSampler>(41, true, 3), launch.rank,
                                                        launch.world_size, c.drop_last);
    loading.seed = DataLoaderOptions().seed;
    data = std::make_unique<DataLoader>(samples, std::move(sampler), loading);
  }
  trainer->train(*data);
  trainer->validate(*data);
  return weights_of(*trainer);
}

std::vector<RankResult> results_of(const Case& c, bool own_sampler = true) {
  return run_processes(c.world_size, [&](const Launch& launch) { return train(c, own_sampler, launch); });
}

TEST(InitDistributed, ALoaderOfNoSamplerReadsAsOneOfADistributedSampler) {
  for (const Case& c : {Case{}, Case{.world_size = 2}, Case{.world_size = 3, .drop_last = true},
                        Case{.world_size = 2, .num_workers = 2, .mode = "graph"}}) {
    const auto own = results_of(c), given = results_of(c, false);
    expect_same_on_all(own);
    expect_same_on_all(given);
    for (const auto& [name, tensor] : own[0].tensors) EXPECT_TRUE(same_bits(tensor, given[0].at(name))) << name;
  }
}

TEST(InitDistributed, AWrongDeviceOfOneRankIsAnErrorOfAll) {
  const auto results = run_processes(2, [](const Launch& launch) {
    InitOptions options = options_of(launch);
    if (launch.rank == 1) options.device = "tpu";
    static_cast<void>(init_distributed(options));
    return NamedTensors();
  });
  expect_error_on_all(results, 2, "'tpu'");
}

TEST(InitDistributed, AWarningTellsOfOptionsThatWereMadeBeforeOrWhenNobodyHeldIt) {
  for (const bool before : {true, false}) {
    const std::string text = stderr_of([before] {
      expect_no_error(run_processes(2, [before](const Launch& launch) {
        TrainerOptions options;
        auto ranks = init_distributed(options_of(launch));
        if (!before) {
          ranks.reset();
          options = {};
        }
        make_trainer("eager", partial_task().make(), options);
        return NamedTensors();
      }));
    });
    EXPECT_NE(text.find("this trainer is alone on this rank"), std::string::npos) << text;
  }
}

// Another trainer of another number of ranks may use it next, in the middle of an epoch too.
TEST(DataLoaderShards, KeepsThePositionOfAllRanks) {
  for (const int workers : {0, 2}) {
    const auto samples = std::make_shared<TensorDataset>(NamedTensors{{"id", at::arange(10)}});
    DataLoader loader(samples, {.batch_size = 2, .num_workers = workers});
    const auto ids = [&] {
      const at::Tensor id = loader.next().value()["id"];
      return std::vector<int64_t>(id.const_data_ptr<int64_t>(), id.const_data_ptr<int64_t>() + id.numel());
    };
    loader.start_epoch(0);
    EXPECT_EQ(ids(), (std::vector<int64_t>{0, 1}));
    EXPECT_FALSE(loader.shard());
    loader.set_shard(1, 2);
    ASSERT_TRUE(loader.shard());
    EXPECT_EQ(loader.shard()->rank, 1);
    EXPECT_EQ(loader.batches_per_epoch(), 3);
    EXPECT_EQ(ids(), (std::vector<int64_t>{4, 5}));  // rank 0 has 2 and 3
    loader.set_shard(0, 1);
    EXPECT_EQ(ids(), (std::vector<int64_t>{6, 7}));
    EXPECT_THROW(loader.set_shard(2, 2), ConfigError);
  }
}

}  // namespace
}  // namespace duet
