#include <cstdlib>
#include <iostream>
#include <stdexcept>
#include <c10/util/StringUtil.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>
#include "base/error.h"
#include "core/detail/run_state.h"
#include "core/hook.h"
#include "tests/support/rank_data.h"
#include "tests/support/ranks.h"
#include "tests/support/temp_dir.h"
#include "tests/support/toy_tasks.h"
#include "tests/support/trainer_runs.h"

// One rank fails in a training; what the others see.
namespace duet {
namespace {

using testing::make_trainer;
using testing::RankResult;
using testing::run_ranks;
using testing::ToyTask;

constexpr double kTimeout = 3;
constexpr int64_t kStep = 5;

struct Fault {
  std::string how;  // "killed", "exits", "throws", "stopped"
  HookPoint where = HookPoint::kBeforeTrainIter;
  std::string phase = "step";  // as messages name it
  int64_t rank = 0;
};

void PrintTo(const Fault& fault, std::ostream* out) {
  *out << "rank " << fault.rank << " " << fault.how << " in " << fault.phase;
}

void strike(const Fault& fault) {
  if (fault.how == "killed") raise(SIGKILL);
  if (fault.how == "exits") _exit(3);
  if (fault.how == "throws") throw std::runtime_error("the disk is on fire");
  if (fault.how == "stopped") raise(SIGSTOP);
}

NamedTensors train(const std::string& mode, const Fault& fault, const std::string& folder,
                   const std::shared_ptr<Communicator>& ranks) {
  const ToyTask task = testing::mlp_task();
  TrainerOptions options;
  options.loop.max_steps = 1000000;
  options.loop.val_interval = 2;
  options.distributed.communicator = ranks;
  const auto trainer = make_trainer(mode, task.make(), options);
  int64_t steps = 0;
  const auto strike_here = [&] {
    if (ranks->rank() == fault.rank && steps >= kStep) strike(fault);
  };
  auto hook = std::make_unique<CallbackHook>("fault");
  if (fault.phase != "data") hook->on(fault.where, [&](TrainContext&) { strike_here(); });
  CheckpointStore store(folder);
  hook->on(HookPoint::kAfterTrainIter, [&](TrainContext& context) {
    steps = context.progress.step;
    if (context.progress.step % 3 == 0) save_checkpoint(store, context);
  });
  trainer->add_hook(std::move(hook));
  const NamedTensors samples = testing::numbered_samples(task, 106);
  const auto validation = testing::share_of(samples, 40, ranks.get());
  testing::WatchedData data(testing::share_of(samples, 8, ranks.get()), [&] {
    if (fault.phase == "data") strike_here();
  });
  trainer->train(data, validation.get());
  return {};
}

void expect_named(const std::vector<RankResult>& results, const Fault& fault) {
  const RankResult& culprit = results[static_cast<std::size_t>(fault.rank)];
  const bool stopped = fault.how == "stopped";
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    if (static_cast<int64_t>(rank) == fault.rank) continue;
    const RankResult& other = results[rank];
    const double late = other.seconds - (stopped ? culprit.stopped : culprit.seconds);
    std::cout << "  rank " << rank << " after " << late << " s: " << other.error << std::endl;
    if (fault.how == "throws" && fault.phase == "checkpoint") {  // a save is done together: its errors are everyone's
      EXPECT_NE(other.error.find(c10::str("on rank ", fault.rank, ": ")), std::string::npos) << other.error;
      EXPECT_NE(other.error.find("the disk is on fire"), std::string::npos) << other.error;
      continue;
    }
    EXPECT_EQ(other.exit_code, 6) << other.error;
    const std::string failed = fault.how == "throws" ? " failed in step " : " is dead or stopped, last seen in step ";
    EXPECT_NE(other.error.find(c10::str("rank ", fault.rank, failed)), std::string::npos) << other.error;
    EXPECT_NE(other.error.find("(" + fault.phase + ")"), std::string::npos) << other.error;
    EXPECT_EQ(other.error.find("the disk is on fire") != std::string::npos, fault.how == "throws") << other.error;
  }
  // Who was stopped goes on at last, and finds nobody.
  EXPECT_EQ(culprit.exit_code, fault.how == "killed" ? -SIGKILL : stopped ? 6 : 1) << culprit.error;
}

class Faults : public ::testing::TestWithParam<Fault> {};

TEST_P(Faults, TheOthersNameTheRank) {
  const int64_t world = GetParam().rank == 0 ? 4 : 2;
  const std::string mode = world == 2 ? "eager" : "graph";
  const TempDir folder;
  const auto results =
      run_ranks(world, [&](const auto& ranks) { return train(mode, GetParam(), folder.path(), ranks); },
                {.start_timeout = 30, .timeout = kTimeout});
  expect_named(results, GetParam());
}

std::vector<Fault> all_faults() {
  std::vector<Fault> faults;
  for (const int64_t rank : {0, 1}) {
    for (const char* how : {"killed", "exits", "throws", "stopped"}) {
      faults.push_back({how, HookPoint::kBeforeTrainIter, "data", rank});
      faults.push_back({how, HookPoint::kBeforeTrainIter, "step", rank});
      faults.push_back({how, HookPoint::kBeforeValIter, "validation", rank});
      faults.push_back({how, HookPoint::kBeforeSaveCheckpoint, "checkpoint", rank});
    }
  }
  return faults;
}

INSTANTIATE_TEST_SUITE_P(All, Faults, ::testing::ValuesIn(all_faults()), [](const auto& info) {
  return c10::str("Rank", info.param.rank, info.param.how, "In", info.param.phase);
});

}  // namespace
}  // namespace duet
