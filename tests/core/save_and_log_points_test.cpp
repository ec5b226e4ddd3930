#include <filesystem>
#include <gtest/gtest.h>
#include "checkpoint/checkpoint.h"
#include "hooks/checkpoint_hook.h"
#include "hooks/logger_hook.h"
#include "tests/support/loop_runs.h"
#include "tests/support/modes.h"
#include "tests/support/temp_dir.h"

// The points after a save and after a line of the log, in both modes.

namespace duet {
namespace {

using testing::loader;
using testing::Names;
using testing::trainer_for;

class SaveAndLogPoints : public testing::InBothModes {};

TEST_P(SaveAndLogPoints, AHookHearsOfEachCheckpointOnceItIsComplete) {
  for (const bool async : {false, true}) {
    const TempDir folder;
    const auto trainer = trainer_for(mode(), {.max_steps = 7}, "AdamW", folder / "run");
    trainer->add_hook(std::make_unique<CheckpointHook>(CheckpointHookOptions{.interval = 3, .async = async}));
    Names saved;
    trainer->on(HookPoint::kAfterSaveCheckpoint, [&](TrainContext& at) {
      saved.push_back(std::filesystem::path(at.saved_checkpoint).filename().string());
      EXPECT_NO_THROW(CheckpointStore::read(at.saved_checkpoint));
    });
    trainer->train(*loader(10));
    trainer->save(folder / "more");
    EXPECT_EQ(saved, (Names{"step-3", "step-6", "step-7", "step-7"}));
  }
}

TEST_P(SaveAndLogPoints, AHookHearsOfEachLineOfTheLog) {
  const auto trainer = trainer_for(mode(), {.max_epochs = 1});
  trainer->add_hook(std::make_unique<LoggerHook>(LoggerHookOptions{.interval = 2, .sinks = {}}));
  Names lines;
  std::vector<double> losses, logged;
  trainer->on(HookPoint::kAfterTrainIter, [&](TrainContext& at) { losses.push_back(at.step.loss().item<double>()); });
  trainer->on(HookPoint::kOnLog, [&](TrainContext& at) {
    lines.push_back(at.log_line.kind + " " + std::to_string(static_cast<int>(at.log_line.values.at("step"))));
    logged.push_back(at.log_line.values.at("loss"));
  });
  trainer->train(*loader(10), *loader(4));
  EXPECT_EQ(lines, (Names{"train 2", "train 4", "train 5", "val 5"}));
  EXPECT_NEAR(logged.at(0), (losses.at(0) + losses.at(1)) / 2, 1e-6);
}

DUET_IN_BOTH_MODES(SaveAndLogPoints);

}  // namespace
}  // namespace duet
