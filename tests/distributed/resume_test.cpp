#include <algorithm>
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "core/hook.h"
#include "hooks/ema_hook.h"
#include "hooks/epoch_hooks.h"
#include "tests/support/expect_error.h"
#include "tests/support/rank_data.h"
#include "tests/support/ranks.h"
#include "tests/support/sample_state.h"
#include "tests/support/temp_dir.h"
#include "tests/support/trainer_runs.h"

namespace duet {
namespace {

using testing::RankResult;
using testing::run_ranks;
using testing::ToyTask;

constexpr int64_t kSamples = 106, kGlobalBatch = 8, kAccumulate = 3;  // 14 micro-batches, 5 steps an epoch
constexpr int64_t kSavedAt = 7, kEnd = 16;                            // in the middle of the second epoch

struct Part {
  std::string mode = "eager";
  std::string load{}, save{};
  int64_t until = kEnd;
  int64_t global_batch = kGlobalBatch, accumulate = kAccumulate;
  bool own_buffers = false;  // each rank keeps its own running statistics
  bool synced = false;       // and SyncBuffersHook takes their mean
};

// Trains to a step; besides the weights and their average it gives the samples of the second epoch that this rank has
// trained on.
NamedTensors train(const ToyTask& task, const Part& part, const std::shared_ptr<Communicator>& ranks) {
  seed_all(1);
  TrainerOptions options;
  options.optimizer = SGD{.lr = 0.05, .momentum = 0.9};
  options.loop = {.max_steps = part.until, .accumulate = part.accumulate};
  options.distributed.communicator = ranks;
  options.distributed.broadcast_buffers = !part.own_buffers;
  const auto trainer = testing::make_trainer(part.mode, task.make(), options);
  trainer->add_hook(std::make_unique<EMAHook>(EMAHookOptions{.average = {.momentum = 0.1}, .update_buffers = true}));
  if (part.synced) trainer->add_hook(std::make_unique<SyncBuffersHook>());
  if (!part.load.empty()) trainer->load(part.load);
  std::vector<int64_t> seen;
  trainer->on(HookPoint::kBeforeTrainIter, [&seen](TrainContext& context) {
    for (const Batch& batch : context.step.micro_batches->batches) {
      const at::Tensor ids = batch["id"];
      for (int64_t i = 0; context.progress.epoch == 1 && i < ids.numel(); ++i) seen.push_back(ids[i].item<int64_t>());
    }
  });
  const auto data = testing::share_of(testing::numbered_samples(task, kSamples), part.global_batch, ranks.get());
  trainer->train(*data);
  if (!part.save.empty()) trainer->save(part.save);
  NamedTensors result = testing::weights_of(*trainer);
  const StateDict average = trainer->state_dict().part("hooks.ema.weights");
  for (const auto& [name, tensor] : average.tensors()) result.emplace_back("ema." + name, tensor);
  result.emplace_back("the loss", trainer->result().loss);
  result.emplace_back("seen", at::tensor(seen, at::kLong));
  return result;
}

std::vector<RankResult> run(int64_t world, const ToyTask& task, const Part& part) {
  return run_ranks(world, [&](const auto& ranks) { return train(task, part, ranks); });
}

void add_seen(const std::vector<RankResult>& results, std::vector<int64_t>& all) {
  for (const RankResult& result : results) {
    const at::Tensor& seen = result.at("seen");
    const auto* first = seen.const_data_ptr<int64_t>();
    all.insert(all.end(), first, first + seen.numel());
  }
}

// In either mode up to a checkpoint, then in either mode from it.
void expect_bits_of_the_unbroken_run(const ToyTask& task, const Part& part) {
  const auto unbroken = run(2, task, part);
  testing::expect_no_error(unbroken);
  for (const std::string first : {"eager", "graph"}) {
    const TempDir folder;
    Part before = part, after = part;
    before.mode = first;
    before.save = after.load = folder / "c";
    before.until = kSavedAt;
    testing::expect_no_error(run(2, task, before));
    for (const std::string second : {"eager", "graph"}) {
      if (part.own_buffers && second == first) continue;  // each way once is enough of these
      after.mode = second;
      const auto resumed = run(2, task, after);
      testing::expect_no_error(resumed);
      if (::testing::Test::HasFailure()) return;
      for (std::size_t rank = 0; rank < 2; ++rank) {
        for (const auto& [name, tensor] : unbroken[rank].tensors) {
          if (name == "seen") continue;
          EXPECT_TRUE(testing::same_bits(tensor, resumed[rank].at(name)))
              << first << ", then " << second << ", rank " << rank << ": " << name;
        }
      }
    }
  }
}

TEST(DistributedResume, GivesTheBitsOfTheUnbrokenRunInEitherMode) {
  expect_bits_of_the_unbroken_run(testing::attention_task(), {});  // with dropout
}

// Rank 1 refuses what rank 0 has taken by then.
TEST(DistributedResume, ALoadThatOneRankRefusesChangesNoRank) {
  const ToyTask task = testing::mlp_task();
  const TempDir folder;
  testing::expect_no_error(run(2, task, {.save = folder / "c", .until = 4}));
  for (const std::string mode : {"eager", "graph"}) {
    const auto results = run_ranks(2, [&](const auto& ranks) {
      seed_all(1);
      TrainerOptions options;
      options.loop.max_steps = 2;
      options.optimizer = SGD{.lr = 0.05, .momentum = 0.9};
      options.distributed.communicator = ranks;
      const auto trainer = testing::make_trainer(mode, task.make(), options);
      trainer->add_hook(std::make_unique<EMAHook>(EMAHookOptions{.average = {.momentum = 0.1}}));
      trainer->on(HookPoint::kAfterLoadCheckpoint, [&](TrainContext& context) {
        if (context.progress.step == 4 && ranks->rank() == 1) throw CheckpointError("not that one");
      });
      trainer->train(*testing::share_of(testing::numbered_samples(task, kSamples), kGlobalBatch, ranks.get()));
      const StateDict before = copy_of(trainer->state_dict());
      expect_error<CheckpointError>([&] { trainer->load(folder / "c"); }, {"not that one"});
      expect_same_state(before, trainer->state_dict());
      if (::testing::Test::HasFailure()) throw std::runtime_error("the load changed something");
      return NamedTensors{{"step", at::scalar_tensor(trainer->progress().step, at::kLong)}};
    });
    testing::expect_same_on_all(results);
    EXPECT_EQ(results[1].at("step").item<int64_t>(), 2);
  }
}

// Names of the ranks' own buffers in the checkpoint below a folder.
std::vector<std::string> own_buffers_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const CheckpointTensor& tensor : CheckpointStore::read_manifest(folder).tensors) {
    if (tensor.name.starts_with("buffers_ranks.")) names.push_back(tensor.name);
  }
  return names;
}

TEST(DistributedResume, GivesTheBitsWhereEachRankKeepsItsOwnBuffers) {
  const ToyTask task = testing::cnn_task();
  Part part{.own_buffers = true};
  expect_bits_of_the_unbroken_run(task, part);
  part.synced = true;  // after the first epoch they are alike, 2 steps later at the checkpoint they are not
  expect_bits_of_the_unbroken_run(task, part);
}

// Counts of batches are alike on all ranks.
TEST(DistributedResume, SavesOfTheRanksBuffersWhatDiffers) {
  const ToyTask task = testing::cnn_task();
  const TempDir folder;
  testing::expect_no_error(run(3, task, {.save = folder / "own", .until = 2, .own_buffers = true}));
  testing::expect_no_error(run(3, task, {.save = folder / "alike", .until = 2}));
  std::vector<std::string> expected;
  for (const std::string rank : {"1", "2"}) {
    for (const std::string place : {"hooks.ema.weights.", "model."}) {
      for (const std::string name : {"running_mean", "running_var"})
        expected.push_back("buffers_ranks." + rank + "." + place + "norm." + name);
    }
  }
  EXPECT_EQ(own_buffers_in(folder / "own"), expected);
  EXPECT_EQ(own_buffers_in(folder / "alike"), std::vector<std::string>());
}

TEST(DistributedResume, StartsFromTheBuffersOfRankZeroAtAnotherWorldSize) {
  const ToyTask task = testing::cnn_task();
  const TempDir folder;
  const auto saved = run(2, task, {.save = folder / "c", .until = kSavedAt, .own_buffers = true});
  testing::expect_no_error(saved);
  for (const std::string name : {"norm.running_mean", "norm.running_var", "ema.norm.running_mean"})
    EXPECT_FALSE(testing::same_bits(saved[0].at(name), saved[1].at(name))) << name;
  for (const int64_t world : {1, 2, 3}) {
    const auto loaded = run(world, task, {.load = folder / "c", .until = kSavedAt, .own_buffers = true});
    testing::expect_no_error(loaded);
    for (std::size_t rank = 0; rank < loaded.size(); ++rank) {
      for (const auto& [name, tensor] : saved[world == 2 ? rank : 0].tensors) {
        if (name == "seen" || name == "the loss") continue;
        EXPECT_TRUE(testing::same_bits(tensor, loaded[rank].at(name))) << world << " ranks, " << rank << ": " << name;
      }
    }
  }
}

// From 2 ranks to 4, to 1, to 3, each time within the second epoch of nine steps.
TEST(DistributedResume, GoesThroughSeveralWorldSizes) {
  const ToyTask task = testing::partial_task();
  for (const std::string mode : {"eager", "graph"}) {
    const TempDir folder;
    Part part{.mode = mode, .until = 22, .global_batch = 12, .accumulate = 1};
    const auto unbroken = run(1, task, part);
    testing::expect_no_error(unbroken);
    std::vector<int64_t> seen;
    std::vector<RankResult> last;
    for (const auto& [world, until] : {std::pair{2, 11}, {4, 13}, {1, 15}, {3, 22}}) {
      part.until = until;
      part.save = folder / std::to_string(until);
      last = run(world, task, part);
      testing::expect_no_error(last);
      if (HasFailure()) return;
      add_seen(last, seen);
      part.load = part.save;
    }
    std::sort(seen.begin(), seen.end());
    ASSERT_EQ(seen.size(), static_cast<std::size_t>(kSamples)) << mode;
    for (int64_t i = 0; i < kSamples; ++i) ASSERT_EQ(seen[static_cast<std::size_t>(i)], i);
    EXPECT_LE(testing::largest_difference(unbroken.front(), last.front(), "seen"), 1e-6) << mode;
  }
}

// A checkpoint of one process goes on at several ranks: their generators start anew, each its own.
TEST(DistributedResume, GivesEveryRankRandomNumbersOfItsOwn) {
  const TempDir folder;
  const ToyTask task = testing::mlp_task();
  testing::expect_no_error(run(1, task, {.save = folder / "c", .until = kSavedAt}));
  const auto drawn = run_ranks(3, [&](const std::shared_ptr<Communicator>& ranks) {
    TrainerOptions options;
    options.optimizer = SGD{.lr = 0.05, .momentum = 0.9};
    options.distributed.communicator = ranks;
    const auto trainer = testing::make_trainer("eager", task.make(), options);
    trainer->load(folder / "c");
    return NamedTensors{{"drawn", at::rand({4})}};
  });
  testing::expect_no_error(drawn);
  for (std::size_t a = 0; a < 3; ++a) {
    for (std::size_t b = 0; b < a; ++b)
      EXPECT_FALSE(testing::same_bits(drawn[a].at("drawn"), drawn[b].at("drawn"))) << a << ", " << b;
  }
}

}  // namespace
}  // namespace duet
