#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>
#include <utility>
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include "checkpoint/checkpoint.h"
#include "core/detail/param_scheduler_hook.h"
#include "core/hook.h"
#include "hooks/checkpoint_hook.h"
#include "hooks/detail/run_info_hooks.h"
#include "hooks/early_stopping_hook.h"
#include "hooks/ema_hook.h"
#include "hooks/epoch_hooks.h"
#include "hooks/nan_guard_hook.h"
#include "metrics/class_metric.h"
#include "tests/support/modes.h"
#include "tests/support/rank_data.h"
#include "tests/support/ranks.h"
#include "tests/support/temp_dir.h"
#include "tests/support/trainer_runs.h"

// Hooks on several ranks: what they exchange, and that they decide alike.

namespace duet {
namespace {

using testing::expect_error_on_all;
using testing::RankResult;
using testing::Ranks;
using testing::run_ranks;
using testing::same_bits;
using testing::share_of;
using testing::weights_of;

class DistributedHooks : public testing::InBothModes {
 protected:
  static std::unique_ptr<BaseTrainer> trainer_for(const testing::ToyTask& task, const LoopOptions& loop,
                                                  const Ranks& ranks, TrainerOptions options = {}) {
    seed_all(21);
    options.loop = loop;
    options.optimizer = SGD{.lr = 0.05};
    options.distributed.communicator = ranks;
    return testing::make_trainer(GetParam(), task.make(), options);
  }
};

at::Tensor number(double value) { return at::scalar_tensor(value, at::kDouble); }

TEST_P(DistributedHooks, DataTimeIsTheLongestOfAllRanks) {
  const testing::ToyTask task = testing::mlp_task();
  const auto results = run_ranks(2, [&](const Ranks& ranks) {
    const auto trainer = trainer_for(task, {.max_steps = 3}, ranks);
    double least = 1e9;
    trainer->on(HookPoint::kAfterTrainIter,
                [&](TrainContext& context) { least = std::min(least, context.step.data_seconds); });
    testing::WatchedData data(share_of(testing::numbered_samples(task, 24), 8, ranks.get()), [&] {
      if (ranks->rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    });
    trainer->train(data);
    return NamedTensors{{"least", number(least)}};
  });
  testing::expect_same_on_all(results);
  EXPECT_GE(results[0].at("least").item<double>(), 0.05 - 1e-6);
}

TEST_P(DistributedHooks, SyncBuffersTakesTheMeanOfTheRanks) {
  const testing::ToyTask task = testing::cnn_task();
  const auto results = run_ranks(2, [&](const Ranks& ranks) {
    TrainerOptions options;
    options.distributed.broadcast_buffers = false;
    const auto trainer = trainer_for(task, {.max_epochs = 1}, ranks, options);
    NamedTensors result;
    auto before = std::make_unique<CallbackHook>("before", kVeryHigh);
    before->on(HookPoint::kAfterTrainEpoch, [&result](TrainContext& context) {
      for (const auto& [name, buffer] : context.task.named_buffers())
        result.emplace_back("before." + name, buffer.clone());
    });
    trainer->add_hook(std::move(before));
    trainer->add_hook(std::make_unique<SyncBuffersHook>());
    trainer->train(*share_of(task.batch(24, 9).items(), 8, ranks.get()));
    for (const auto& [name, buffer] : trainer->task().named_buffers()) result.emplace_back(name, buffer);
    return result;
  });
  testing::expect_no_error(results);
  for (const std::string name : {"norm.running_mean", "norm.running_var"}) {
    const at::Tensor &first = results[0].at("before." + name), &second = results[1].at("before." + name);
    EXPECT_FALSE(same_bits(first, second)) << name;
    for (const RankResult& rank : results)
      EXPECT_TRUE(at::allclose(rank.at(name), (first + second) / 2, 1e-6, 1e-7)) << name;
    EXPECT_TRUE(same_bits(results[0].at(name), results[1].at(name))) << name;
  }
  EXPECT_EQ(results[1].at("norm.num_batches_tracked").item<int64_t>(), 3);
}

// Late: all ranks go back to before it, with the data that the others have seen left out.
TEST_P(DistributedHooks, GoBackToBeforeASpikeTogetherAndSaveByOneClock) {
  const testing::ToyTask task = testing::mlp_task();
  const TempDir folder;
  const auto results = run_ranks(2, [&](const Ranks& ranks) {
    TrainerOptions options;
    options.work_dir = folder.path().string();
    const auto trainer = trainer_for(task, {.max_steps = 30}, ranks, options);
    trainer->add_hook(std::make_unique<NaNGuardHook>(
        NaNGuardHookOptions{.interval = 8, .spike_threshold = 1000, .spike_window = 10, .spike_action = "rollback"}));
    trainer->add_hook(std::make_unique<CheckpointHook>(CheckpointHookOptions{.interval = 5, .interval_time = 1e-9}));
    Batch all = task.batch(200, 9);
    all["input"].slice(0, 68, 72).mul_(1e4);  // step 18, of both ranks
    std::vector<int64_t> steps;
    trainer->on(HookPoint::kAfterTrainIter, [&](TrainContext& run) { steps.push_back(run.progress.step); });
    trainer->train(*share_of(all.items(), 4, ranks.get(), false));
    NamedTensors result = weights_of(*trainer);
    result.emplace_back("steps", at::tensor(steps, at::kLong));
    return result;
  });
  testing::expect_same_on_all(results);
  const at::Tensor steps = results[0].at("steps");
  ASSERT_EQ(steps.numel(), 31);  // found by the look before the save of that very step
  EXPECT_EQ(steps[17].item<int64_t>(), 18);
  EXPECT_EQ(steps[18].item<int64_t>(), 18);
  EXPECT_EQ(CheckpointStore(folder / "checkpoints").list().size(), 29U);  // after every step but the first
}

// The weights of one rank alone go bad, in a step that is saved or in the last one: all do what the guard is to do.
TEST_P(DistributedHooks, EndOrGoBackTogetherWhereOneRankHasWeightsThatAreNotFinite) {
  const testing::ToyTask task = testing::mlp_task();
  constexpr int64_t kSteps = 12;
  const auto run = [&](const std::string& action, int64_t bad_step) {
    const TempDir folder;
    return run_ranks(2, [&](const Ranks& ranks) {
      TrainerOptions options;
      options.work_dir = folder.path().string();
      const auto trainer = trainer_for(task, {.max_steps = kSteps}, ranks, options);
      trainer->add_hook(std::make_unique<NaNGuardHook>(NaNGuardHookOptions{.interval = 100, .action = action}));
      trainer->add_hook(std::make_unique<CheckpointHook>(CheckpointHookOptions{.interval = 5}));
      std::vector<int64_t> steps;
      trainer->on(HookPoint::kAfterTrainIter, [&](TrainContext& run) {
        const bool is_first = std::ranges::count(steps, run.progress.step) == 0;
        steps.push_back(run.progress.step);
        if (run.progress.step != bad_step || !is_first || ranks->rank() != 1) return;
        run.task.named_parameters().front().second.detach().view(-1)[0].fill_(std::nan(""));
      });
      trainer->train(*share_of(task.batch(200, 9).items(), 4, ranks.get(), false));
      NamedTensors result = weights_of(*trainer);
      result.emplace_back("steps", at::tensor(steps, at::kLong));
      result.emplace_back("outcome", number(static_cast<double>(trainer->outcome())));
      return result;
    });
  };
  const auto back = run("rollback", 10);
  testing::expect_same_on_all(back);
  EXPECT_EQ(back[0].at("steps").numel(), kSteps + 5);
  expect_error_on_all(run("rollback", kSteps), 5, "");
  for (const int64_t bad_step : {int64_t{10}, kSteps}) {
    expect_error_on_all(run("raise", bad_step), 5, "");
    const auto stopped = run("stop", bad_step);
    testing::expect_no_error(stopped);
    for (const RankResult& rank : stopped)
      EXPECT_EQ(rank.at("outcome").item<double>(), static_cast<double>(RunOutcome::kDiverged)) << bad_step;
  }
}

TEST_P(DistributedHooks, DistSamplerSeedGivesEveryRankOtherSamplesAndEveryEpochAnotherOrder) {
  const testing::ToyTask task = testing::mlp_task();
  const auto results = run_ranks(2, [&](const Ranks& ranks) {
    const auto trainer = trainer_for(task, {.max_epochs = 3}, ranks);
    trainer->add_hook(std::make_unique<DistSamplerSeedHook>());
    std::vector<std::vector<at::Tensor>> ids(3);  // of each epoch, as this rank trained on them
    trainer->on(HookPoint::kBeforeTrainIter, [&](TrainContext& context) {
      for (const Batch& batch : context.step.micro_batches->batches)
        ids.at(static_cast<std::size_t>(context.progress.epoch)).push_back(batch["id"]);
    });
    trainer->train(*share_of(testing::numbered_samples(task, 21), 4, ranks.get()));
    return NamedTensors{{"0", at::cat(ids[0])}, {"1", at::cat(ids[1])}, {"2", at::cat(ids[2])}};
  });
  testing::expect_no_error(results);
  for (const std::string epoch : {"0", "1", "2"}) {
    const at::Tensor both = at::cat({results[0].at(epoch), results[1].at(epoch)});
    EXPECT_TRUE(at::equal(std::get<0>(both.sort()), at::arange(21))) << epoch;  // disjoint, and the same union
    for (const std::string other : {"0", "1", "2"}) {
      for (const RankResult& rank : results)
        EXPECT_EQ(at::equal(rank.at(epoch), rank.at(other)), epoch == other) << epoch << ", " << other;
    }
  }
}

// The validation that shows no improvement is the same everywhere, though the ranks see other samples.
TEST_P(DistributedHooks, EarlyStoppingAndPlateausDecideAlike) {
  const testing::ToyTask task = testing::mlp_task();
  const auto results = run_ranks(2, [&](const Ranks& ranks) {
    TrainerOptions options;
    options.schedules = {ReduceOnPlateau{.monitor = "accuracy", .rule = "greater", .factor = 0.5, .patience = 0}};
    const auto trainer = trainer_for(task, {.max_epochs = 60}, ranks, options);
    trainer->add_metric(std::make_unique<Accuracy>());
    trainer->add_hook(
        std::make_unique<EarlyStoppingHook>(EarlyStoppingHookOptions{.monitor = "accuracy", .patience = 3}));
    EMAHookOptions average;
    average.average.momentum = 0.1;
    trainer->add_hook(std::make_unique<EMAHook>(average));
    const auto training = share_of(task.batch(24, 9).items(), 8, ranks.get());
    const auto validation = share_of(task.batch(7, 10).items(), 4, ranks.get(), false);
    trainer->train(*training, validation.get());
    NamedTensors result = weights_of(*trainer);
    const StateDict hooks = trainer->hooks().state_dict();
    for (const auto& [name, tensor] : hooks.tensors()) result.emplace_back("hooks." + name, tensor);
    result.emplace_back("step", number(static_cast<double>(trainer->progress().step)));
    result.emplace_back("rate", number(trainer->hyper_parameters().get(0, "lr")));
    result.emplace_back("stopped", number(trainer->outcome() == RunOutcome::kStopped));
    return result;
  });
  testing::expect_same_on_all(results);
  EXPECT_EQ(results[0].at("stopped").item<double>(), 1);
  EXPECT_LT(results[0].at("rate").item<double>(), 0.05);
  EXPECT_LT(results[0].at("step").item<double>(), 180);
}

DUET_IN_BOTH_MODES(DistributedHooks);

}  // namespace
}  // namespace duet
