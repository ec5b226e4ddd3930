#include <csignal>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>
#include "checkpoint/checkpoint.h"
#include "hooks/checkpoint_hook.h"
#include "hooks/stop_signal_hook.h"
#include "tests/support/hanging_data.h"
#include "tests/support/log_lines.h"
#include "tests/support/loop_runs.h"
#include "tests/support/sample_state.h"
#include "tests/support/temp_dir.h"

// A run that waits for data that never come can be stopped, and goes on where they come.

namespace duet {
namespace {

using testing::hanging_loader;
using testing::mlp_task;
using testing::trainer_for;

struct Wait {
  std::string mode, place;
  int workers;
};

class TrainerWaits : public ::testing::TestWithParam<Wait> {
 protected:
  // Of the second micro-batch of step 3, or of the third batch of the validation after step 2; -1: nothing hangs.
  void train(BaseTrainer& trainer, bool hangs) const {
    const bool trains = GetParam().place == "training";
    const auto data = hanging_loader(mlp_task().batch(20, 9).items(), hangs && trains ? 14 : -1, GetParam().workers),
               validation =
                   hanging_loader(mlp_task().batch(8, 5).items(), hangs && !trains ? 5 : -1, GetParam().workers);
    trainer.train(*data, validation.get());
  }
  std::unique_ptr<BaseTrainer> trainer(const std::string& work_dir, double max_seconds = 0) const {
    const LoopOptions loop = {.max_epochs = 2, .max_seconds = max_seconds, .accumulate = 2, .val_interval = 2};
    auto made = trainer_for(GetParam().mode, loop, "AdamW", work_dir);
    if (!work_dir.empty()) made->add_hook(std::make_unique<CheckpointHook>(CheckpointHookOptions{.interval = 0}));
    return made;
  }
  void expect_goes_on(const std::string& folder) const {
    const auto latest = CheckpointStore(CheckpointStore::root_of(folder)).find_latest();
    ASSERT_TRUE(latest);
    const auto whole = trainer(""), resumed = trainer("");
    train(*whole, /*hangs=*/false);
    seed_all(1);
    resumed->load(*latest);
    train(*resumed, /*hangs=*/false);
    expect_same_state(whole->state_dict(), resumed->state_dict());
  }
};

TEST_P(TrainerWaits, ASignalEndsAWaitForDataThatNeverCome) {
  const TempDir folder;
  const std::string said = testing::stderr_of([&] {
    const auto stopped = trainer(folder.path().string());
    stopped->add_hook(std::make_unique<StopSignalHook>());
    testing::send_signal_in_wait(*stopped, SIGTERM, {getpid()});
    train(*stopped, /*hangs=*/true);
    EXPECT_EQ(stopped->outcome(), RunOutcome::kInterrupted);
    EXPECT_EQ(stopped->progress().step, GetParam().place == "training" ? 3 : 2);
    EXPECT_THAT(stopped->stop_reason(), ::testing::HasSubstr("SIGTERM"));
  });
  EXPECT_THAT(said, ::testing::HasSubstr("the thread that reads it is left behind"));
  expect_goes_on(folder.path().string());
}

TEST_P(TrainerWaits, SoDoesATimeLimit) {
  const TempDir folder;
  const auto stopped = trainer(folder.path().string(), /*max_seconds=*/1);
  testing::stderr_of([&] { train(*stopped, /*hangs=*/true); });
  EXPECT_EQ(stopped->outcome(), RunOutcome::kInterrupted);
  EXPECT_THAT(stopped->stop_reason(), ::testing::HasSubstr("time limit"));
  expect_goes_on(folder.path().string());
}

// Each place with and without workers, and in each mode.
INSTANTIATE_TEST_SUITE_P(All, TrainerWaits,
                         ::testing::Values(Wait{"eager", "training", 0}, Wait{"eager", "validation", 2},
                                           Wait{"graph", "training", 2}, Wait{"graph", "validation", 0}),
                         [](const auto& info) {
                           return info.param.mode + "_" + info.param.place + "_" + std::to_string(info.param.workers);
                         });

}  // namespace
}  // namespace duet
