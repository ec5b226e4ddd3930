#include <csignal>
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <unistd.h>
#include "checkpoint/checkpoint.h"
#include "hooks/checkpoint_hook.h"
#include "hooks/stop_signal_hook.h"
#include "tests/support/hanging_data.h"
#include "tests/support/rank_data.h"
#include "tests/support/ranks.h"
#include "tests/support/temp_dir.h"
#include "tests/support/trainer_runs.h"

// Rank 1 waits for data that never come, and rank 0 for rank 1: a signal ends both, and the run goes on.

namespace duet {
namespace {

using testing::RankResult;
using testing::run_ranks;

struct Wait {
  std::string mode, place;
  bool both;  // get the signal; else rank 1 alone
};

class DistributedWaits : public ::testing::TestWithParam<Wait> {
 protected:
  // In the second micro-batch of step 3, or in the third batch of the validation after step 2. Both are rank 1's.
  static int64_t hangs_at(const Communicator& ranks, bool hangs) {
    if (!hangs || ranks.is_main()) return -1;
    return GetParam().place == "training" ? 30 : 10;
  }

  static NamedTensors train(const std::shared_ptr<Communicator>& ranks, const std::string& folder, bool hangs) {
    const bool trains = GetParam().place == "training";
    const testing::ToyTask task = testing::mlp_task();
    seed_all(1);
    TrainerOptions options;
    options.optimizer = SGD{.lr = 0.05, .momentum = 0.9};
    options.loop = {.max_epochs = 2, .accumulate = 2, .val_interval = 2};
    options.distributed.communicator = ranks;
    options.work_dir = folder;
    const auto trainer = testing::make_trainer(GetParam().mode, task.make(), options);
    if (!folder.empty()) {
      trainer->add_hook(std::make_unique<CheckpointHook>(CheckpointHookOptions{.interval = 0}));
      if (const auto latest = CheckpointStore(CheckpointStore::root_of(folder)).find_latest()) trainer->load(*latest);
    }
    trainer->add_hook(std::make_unique<StopSignalHook>());
    const std::vector<pid_t> pids = ranks->gather(getpid());
    std::vector<pid_t> told{getpid()};
    if (GetParam().both) told.push_back(pids[0]);
    if (hangs && !ranks->is_main()) testing::send_signal_in_wait(*trainer, SIGTERM, told);
    const auto at = [&](bool here) { return here ? hangs_at(*ranks, hangs) : -1; };
    const auto data = testing::hanging_loader(task.batch(40, 9).items(), at(trains), 1),
               validation = testing::hanging_loader(task.batch(16, 5).items(), at(!trains), 0);
    trainer->train(*data, validation.get());
    NamedTensors result = testing::weights_of(*trainer);
    result.emplace_back("step", at::tensor(trainer->progress().step));
    result.emplace_back("interrupted", at::tensor(int64_t{trainer->outcome() == RunOutcome::kInterrupted}));
    return result;
  }
};

TEST_P(DistributedWaits, ASignalEndsThemForAllRanks) {
  const TempDir folder;
  const auto run = [](const std::string& work_dir, bool hangs) {
    const auto results = run_ranks(2, [&](const auto& ranks) { return train(ranks, work_dir, hangs); });
    testing::expect_no_error(results);
    testing::expect_same_on_all(results);
    return results;
  };
  const std::string work_dir = folder.path().string();
  const auto stopped = run(work_dir, /*hangs=*/true);
  EXPECT_EQ(stopped[0].at("interrupted").item<int64_t>(), 1);
  EXPECT_EQ(stopped[0].at("step").item<int64_t>(), GetParam().place == "training" ? 3 : 2);
  const auto whole = run("", /*hangs=*/false), resumed = run(work_dir, /*hangs=*/false);
  EXPECT_EQ(resumed[0].at("interrupted").item<int64_t>(), 0);
  EXPECT_EQ(testing::largest_difference(whole[0], resumed[0]), 0);
}

INSTANTIATE_TEST_SUITE_P(All, DistributedWaits,
                         ::testing::Values(Wait{"eager", "training", true}, Wait{"graph", "training", false},
                                           Wait{"eager", "validation", false}, Wait{"graph", "validation", true}),
                         [](const auto& info) {
                           return info.param.mode + "_" + info.param.place + (info.param.both ? "_both" : "_one");
                         });

}  // namespace
}  // namespace duet
