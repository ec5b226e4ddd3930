#include "hooks/checkpoint_hook.h"
#include <gtest/gtest.h>
#include "base/error.h"
#include "tests/hooks/checkpoint_runs.h"
#include "tests/support/expect_error.h"
#include "tests/support/log_lines.h"

namespace duet {
namespace {

TEST_F(Checkpoint, SavesEveryIntervalAndAtTheEnd) {
  CheckpointHook hook({.interval = 4, .max_keep = 10});
  hook.before_train(run.context);
  train(hook, 3);
  EXPECT_EQ(saved(), FileNames{});
  train(hook, 7);
  EXPECT_EQ(saved(), (FileNames{"step-4", "step-8"}));
  hook.after_train(run.context);
  EXPECT_EQ(saved(), (FileNames{"step-4", "step-8", "step-10"}));
  EXPECT_EQ(CheckpointStore::load(root() + "/step-8").number("trainer.value"), 8);

  CheckpointHook later({.interval = 4, .save_begin = 13});
  later.before_train(run.context);
  train(later, 12);
  EXPECT_EQ(saved(), (FileNames{"step-4", "step-8", "step-10", "step-13", "step-17", "step-21"}));
}

TEST_F(Checkpoint, TheLastOneHoldsWhatTheLastValidationChanged) {
  CheckpointHook hook({.interval = 4});
  hook.before_train(run.context);
  train(hook, 4);
  EXPECT_EQ(CheckpointStore::load(root() + "/step-4").number("trainer.value"), 4);
  run.state.value = 7;
  hook.after_val(run.context);
  hook.after_train(run.context);
  EXPECT_EQ(CheckpointStore::load(root() + "/step-4").number("trainer.value"), 7);
}

TEST_F(Checkpoint, SavesWhenAHookAsksForIt) {
  CheckpointHook hook({.interval = 0});
  hook.before_train(run.context);
  train(hook, 2);
  run.context.control.request_save();
  train(hook, 3);
  EXPECT_EQ(saved(), FileNames{"step-3"});
  EXPECT_FALSE(run.context.control.save_requested);
}

// The clock of rank 0 proposes, and the ranks agree on a step: here nobody agrees but the test.
TEST_F(Checkpoint, ProposesASaveWhenItsTimeHasCome) {
  CheckpointHook hook({.interval = 0, .interval_time = 1e-9, .save_begin = 3});
  hook.before_train(run.context);
  train(hook, 2);
  EXPECT_FALSE(run.context.control.save_proposed);
  train(hook, 1);
  EXPECT_TRUE(run.context.control.save_proposed);
  EXPECT_EQ(saved(), FileNames{});
  run.context.control = {};
  run.context.is_main = false;
  train(hook, 1);
  EXPECT_FALSE(run.context.control.save_proposed);

  run.context.is_main = true;
  CheckpointHook seldom({.interval = 0, .interval_time = 1e9});
  seldom.before_train(run.context);
  train(seldom, 3);
  EXPECT_FALSE(run.context.control.save_proposed);
}

TEST_F(Checkpoint, SavesWhereOutDirSaysAndIsFoundInTheWorkDir) {
  const std::string place = folder / "scratch/run/checkpoints";
  const auto hook_in = [&](const std::string& out_dir) {
    return CheckpointHook({.interval = 2, .published_keys = {"model"}, .out_dir = out_dir});
  };
  CheckpointHook hook = hook_in(folder / "scratch");
  hook.before_train(run.context);
  train(hook, 5);
  run.context.control.outcome = RunOutcome::kFinished;
  hook.after_train(run.context);
  EXPECT_EQ(CheckpointStore::root_of(run.context.work_dir), place);
  EXPECT_EQ(saved(), (FileNames{"step-2", "step-4", "step-5"}));
  EXPECT_EQ(CheckpointStore::find(run.context.work_dir), place + "/step-5");
  EXPECT_EQ(CheckpointStore::find(folder / "scratch/run"), place + "/step-5");
  EXPECT_FALSE(fs::is_empty(folder / "run/published"));

  // What is set aside goes beside it.
  EXPECT_EQ(CheckpointStore(root()).set_aside_after(4), place + ".1");
  EXPECT_EQ(CheckpointStore::find(run.context.work_dir), place + "/step-4");

  CheckpointHook elsewhere = hook_in(folder / "other");
  expect_error<ConfigError>([&] { elsewhere.before_train(run.context); },
                            {"the checkpoints of this run in '" + place, "leave out_dir as it was"});
  CheckpointHook again = hook_in(folder / "scratch");
  EXPECT_NO_THROW(again.before_train(run.context));

  run.context.work_dir = folder / "elsewhere/run";
  CheckpointHook of_another = hook_in(folder / "scratch");
  expect_error<ConfigError>([&] { of_another.before_train(run.context); },
                            {"the checkpoints of another run in '" + place, "choose another out_dir"});
  run.context.identity.parent = place + "/step-4";
  EXPECT_NO_THROW(of_another.before_train(run.context));

  run.context.work_dir = folder / "full";
  fs::create_directories(folder / "full/checkpoints");
  folder.write("full/checkpoints/something", "x");
  CheckpointHook no_room = hook_in(folder / "scratch");
  expect_error<ConfigError>([&] { no_room.before_train(run.context); }, {"full/checkpoints", "change out_dir"});
}

TEST_F(Checkpoint, SavesAfterAStopButNotAfterAnErrorNorWithoutAnStep) {
  CheckpointHook hook({.interval = 0});
  hook.before_train(run.context);
  hook.after_train(run.context);
  EXPECT_EQ(saved(), FileNames{});

  hook.before_train(run.context);
  train(hook, 2);
  run.context.control.error = "broken";
  hook.after_train(run.context);
  EXPECT_EQ(saved(), FileNames{});

  run.context.control.error.clear();
  run.context.control.request_stop("signal 15");
  hook.before_train(run.context);
  train(hook, 1);
  hook.after_train(run.context);
  EXPECT_EQ(saved(), FileNames{"step-3"});
}

TEST_F(Checkpoint, DoesNotSaveAgainWhatWasJustLoaded) {
  CheckpointHook hook({.interval = 0});
  hook.before_train(run.context);
  train(hook, 3);
  run.context.progress.step = 1;
  hook.after_load_checkpoint(run.context);
  hook.after_train(run.context);
  EXPECT_EQ(saved(), FileNames{});
}

TEST_F(Checkpoint, SavesAtTheEndWhatFailedLastOrThrows) {
  CheckpointHook hook({.interval = 2, .save_last = false});
  hook.before_train(run.context);
  fill_disk();
  train(hook, 3);
  expect_error<CheckpointError>([&] { hook.after_train(run.context); }, {"step 3"});

  free_disk();
  hook.before_train(run.context);
  fill_disk();
  train(hook, 1);
  free_disk();
  hook.after_train(run.context);
  EXPECT_EQ(saved(), FileNames{"step-4"});
}

TEST_F(Checkpoint, TellsOfASaveThatFailedAndGoesOn) {
  for (const bool async : {true, false}) {
    run.context.progress.step = 0;
    fs::remove_all(root());
    CheckpointHook hook({.interval = 2, .async = async});
    hook.before_train(run.context);
    train(hook, 3);
    fill_disk();
    const std::string said = testing::stderr_of([&] {
      train(hook, 4);
      wait_for_saves();
    });
    expect_contains(said, {"step 4 was not saved", "step 6 was not saved", "training goes on", "Not a directory"});
    free_disk();
    train(hook, 2);
    hook.after_train(run.context);
    EXPECT_EQ(saved(), (FileNames{"step-2", "step-8", "step-9"}));
  }
}

TEST_F(Checkpoint, WaitsForAnUnfinishedSaveAfterAnError) {
  CheckpointHook hook({.interval = 1, .max_keep = 10});
  hook.before_train(run.context);
  train(hook, 3);
  run.context.control.error = "broken";
  hook.after_train(run.context);
  EXPECT_TRUE(fs::exists(root() + "/step-3"));
}

TEST_F(Checkpoint, NeedsAWorkDirThatCanBeWritten) {
  run.context.work_dir = folder.write("a_file", "x") + "/run";
  CheckpointHook hook;
  expect_error<ConfigError>([&] { hook.before_train(run.context); }, {"a_file/run/checkpoints", "work_dir"});

  run.context.work_dir.clear();
  expect_error<ConfigError>([&] { hook.before_train(run.context); }, {"no work_dir"});
  CheckpointHook lenient({.interval = 1, .need_work_dir = false});
  EXPECT_NO_THROW(lenient.before_train(run.context));
  train(lenient, 2);
  run.validation(lenient, {{"accuracy", 1}});
  EXPECT_NO_THROW(lenient.after_train(run.context));
}

TEST_F(Checkpoint, RefusesBadOptionsAndUnknownMetrics) {
  expect_error<ConfigError>([] { CheckpointHook({.max_keep = 0}); }, {"max_keep is 0", "at least 1"});
  expect_error<ConfigError>([] { CheckpointHook({.save_best = {"score"}}); }, {"'score'", "set rule"});
  EXPECT_NO_THROW(CheckpointHook({.save_best = {"score"}, .rule = "less"}));
  CheckpointHook hook({.save_best = {"accuracyy"}});
  hook.before_train(run.context);
  train(hook, 1);
  expect_error<ConfigError>([&] { run.validation(hook, {{"accuracy", 1}, {"loss", 1}}); },
                            {"'accuracyy'", "accuracy, loss"});
}

}  // namespace
}  // namespace duet
