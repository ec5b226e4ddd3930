#include "hooks/checkpoint_hook.h"
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <set>
#include <gtest/gtest.h>
#include "base/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/fakes.h"
#include "tests/support/log_lines.h"
#include "tests/support/temp_dir.h"

namespace duet {
namespace {

namespace fs = std::filesystem;
using FileNames = std::set<std::string>;

class Checkpoint : public ::testing::Test {
 protected:
  TempDir folder;
  FakeRun run;

  void SetUp() override { run.context.work_dir = folder / "run"; }

  std::string root() const { return folder / "run/checkpoints"; }

  FileNames saved() const {
    FileNames names;
    for (const auto& entry : fs::directory_iterator(root())) {
      if (entry.is_directory()) names.insert(entry.path().filename().string());
    }
    return names;
  }

  std::string best() const {
    std::string name;
    std::getline(std::ifstream(root() + "/best") >> std::ws, name);
    return name;
  }

  void train(CheckpointHook& hook, int64_t steps) {
    for (int64_t i = 0; i < steps; ++i) {
      run.state.value = static_cast<double>(run.context.progress.step + 1);
      run.step(hook);
    }
  }

  // The disk fills up: nothing can be made where the checkpoints were.
  void fill_disk() {
    fs::rename(root(), root() + ".aside");
    std::ofstream(root()) << "a file";
  }
  void free_disk() {
    fs::remove(root());
    fs::rename(root() + ".aside", root());
  }
};

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
}

TEST_F(Checkpoint, CountsTheIntervalFromSaveBegin) {
  CheckpointHook hook({.interval = 4, .save_begin = 3});
  hook.before_train(run.context);
  train(hook, 12);
  EXPECT_EQ(saved(), (FileNames{"step-3", "step-7", "step-11"}));
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

TEST_F(Checkpoint, KeepsTheNewest) {
  CheckpointHook hook({.interval = 1, .max_keep = 3});
  hook.before_train(run.context);
  train(hook, 6);
  EXPECT_EQ(saved(), (FileNames{"step-4", "step-5", "step-6"}));
  hook.after_train(run.context);
  EXPECT_EQ(saved().size(), 3U);
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

TEST_F(Checkpoint, KeepsTheBestByTheFirstMetric) {
  CheckpointHook hook({.interval = 1, .max_keep = 2, .save_best = "auto"});
  run.state.hook = &hook;
  hook.before_train(run.context);
  const std::vector<double> accuracies = {0.5, 0.7, 0.7, std::nan(""), std::numeric_limits<double>::infinity(), 0.6};
  for (const double accuracy : accuracies) {
    train(hook, 1);
    run.validation(hook, {{"accuracy", accuracy}, {"loss", -accuracy}});
  }
  EXPECT_EQ(saved(), (FileNames{"step-2", "step-5", "step-6"}));  // ties are no improvement
  EXPECT_EQ(best(), "step-2");
  EXPECT_EQ(CheckpointStore(root()).find_best(), root() + "/step-2");
  const StateDict state = CheckpointStore::load(root() + "/step-2").part("hooks.checkpoint");
  EXPECT_EQ(state.text("best_folder"), "step-2");
  EXPECT_EQ(state.text("best_metric"), "accuracy");
  EXPECT_EQ(state.number("best_score"), 0.7);
}

TEST_F(Checkpoint, KeepsTheBestByTheLossOnlyIfThereIsNoOther) {
  for (const auto& [other, expected] : {std::pair{"mIoU", "step-2"}, {"loss", "step-1"}}) {
    run.context.progress.step = 0;
    CheckpointHook hook({.interval = 0, .save_best = "auto"});
    hook.before_train(run.context);
    for (const double score : {0.1, 0.2}) {
      train(hook, 1);
      run.validation(hook, {{"loss", score}, {other, score}});
    }
    EXPECT_EQ(best(), expected) << other;
  }
}

TEST_F(Checkpoint, TakesTheFirstResultOfTheFirstMetricForTheBestAndSaysSo) {
  CheckpointHook hook({.interval = 0, .save_best = "auto"});
  hook.before_train(run.context);
  run.context.evaluation.first_metric = "mIoU";
  const auto validate = [&](double score) {
    train(hook, 1);
    return testing::stderr_of([&] { run.validation(hook, {{"aAcc", -score}, {"loss", -score}, {"mIoU", score}}); });
  };
  EXPECT_NE(validate(0.1).find("auto goes by mIoU"), std::string::npos);
  EXPECT_EQ(validate(0.2).find("auto goes by"), std::string::npos);
  EXPECT_EQ(best(), "step-2");
}

// Dies when the best checkpoint is there and the file that names it is not.
TEST_F(Checkpoint, NamesTheBestAfterAResumeThatTheProcessCouldNot) {
  CheckpointHook first({.interval = 1, .max_keep = 10, .save_best = "accuracy"});
  run.state.hook = &first;
  first.before_train(run.context);
  for (const double accuracy : {0.5, 0.7}) {
    train(first, 1);
    run.validation(first, {{"accuracy", accuracy}});
  }
  for (const std::string left : {"step-1\n", ""}) {
    std::ofstream(root() + "/best") << left;
    CheckpointHook second({.interval = 1, .max_keep = 10, .save_best = "accuracy"});
    second.load_state_dict(CheckpointStore::load(root() + "/step-2").part("hooks.checkpoint"));
    second.before_train(run.context);
    EXPECT_EQ(best(), "step-2");
  }
}

TEST_F(Checkpoint, SavesTheBestBetweenIntervals) {
  CheckpointHook hook({.interval = 0, .save_best = "val_LOSS", .save_last = false});
  hook.before_train(run.context);
  for (const double loss : {2.0, 3.0, 1.0}) {
    train(hook, 1);
    run.validation(hook, {{"accuracy", loss}, {"val_LOSS", loss}});
  }
  EXPECT_EQ(best(), "step-3");
  EXPECT_EQ(saved(), (FileNames{"step-1", "step-3"}));
  hook.after_train(run.context);
  run.validation(hook, {{"val_LOSS", 0.0}});  // an evaluation outside training
  EXPECT_EQ(best(), "step-3");
}

TEST_F(Checkpoint, ComparesByNameOrByRule) {
  const auto best_of = [&](const std::string& metric, const std::string& rule) {
    run.context.progress.step = 0;
    CheckpointHook hook({.interval = 0, .save_best = metric, .rule = rule});
    hook.before_train(run.context);
    for (const double score : {2.0, 3.0, 1.0}) {
      train(hook, 1);
      run.validation(hook, {{metric, score}});
    }
    return best();
  };
  EXPECT_EQ(best_of("mIoU", ""), "step-2");
  EXPECT_EQ(best_of("word_error_rate", ""), "step-3");
  EXPECT_EQ(best_of("Perplexity", ""), "step-3");
  EXPECT_EQ(best_of("mIoU", "less"), "step-3");
  EXPECT_EQ(best_of("loss", "greater"), "step-2");
}

TEST_F(Checkpoint, RemembersTheBestAfterAResume) {
  CheckpointHook first({.interval = 1, .save_best = "accuracy"});
  first.before_train(run.context);
  train(first, 1);
  run.validation(first, {{"accuracy", 0.9}});

  CheckpointHook second({.interval = 1, .max_keep = 2, .save_best = "accuracy"});
  second.load_state_dict(first.state_dict());
  second.before_train(run.context);
  for (int i = 0; i < 4; ++i) {
    train(second, 1);
    run.validation(second, {{"accuracy", 0.8}});
  }
  EXPECT_EQ(best(), "step-1");
  EXPECT_EQ(saved(), (FileNames{"step-1", "step-4", "step-5"}));
  EXPECT_TRUE(CheckpointHook().state_dict().values().empty());
}

TEST_F(Checkpoint, GoesOnTrainingWhenASaveFailsAndTriesAgain) {
  CheckpointHook hook({.interval = 2, .save_best = "accuracy", .save_last = false});
  hook.before_train(run.context);
  train(hook, 2);
  fill_disk();
  EXPECT_NO_THROW(train(hook, 2));
  EXPECT_NO_THROW(run.validation(hook, {{"accuracy", 0.5}}));
  EXPECT_TRUE(hook.state_dict().values().empty());  // a best that is nowhere is none
  free_disk();
  train(hook, 3);
  EXPECT_EQ(saved(), (FileNames{"step-2", "step-6"}));
  hook.after_train(run.context);
  EXPECT_EQ(saved(), (FileNames{"step-2", "step-6"}));
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

TEST_F(Checkpoint, NeedsAWorkDirThatCanBeWritten) {
  run.context.work_dir = folder.write("a_file", "x") + "/run";
  CheckpointHook hook;
  expect_error<ConfigError>([&] { hook.before_train(run.context); }, {"a_file/run/checkpoints", "work_dir"});

  run.context.work_dir.clear();
  expect_error<ConfigError>([&] { hook.before_train(run.context); }, {"no work_dir"});
  CheckpointHook idle({.interval = 0, .save_last = false}), lenient({.interval = 1, .need_work_dir = false});
  for (CheckpointHook* quiet : {&idle, &lenient}) {
    EXPECT_NO_THROW(quiet->before_train(run.context));
    train(*quiet, 2);
    run.validation(*quiet, {{"accuracy", 1}});
    EXPECT_NO_THROW(quiet->after_train(run.context));
  }
}

TEST_F(Checkpoint, RefusesBadOptionsAndUnknownMetrics) {
  expect_error<ConfigError>([] { CheckpointHook({.interval = -1}); }, {"interval is -1", ">= 0"});
  expect_error<ConfigError>([] { CheckpointHook({.max_keep = 0}); }, {"max_keep is 0", "at least 1"});
  expect_error<ConfigError>([] { CheckpointHook({.rule = "more"}); }, {"rule is 'more'", "greater"});
  expect_error<ConfigError>([] { CheckpointHook({.save_best = "score"}); },
                            {"[CheckpointHook]", "'score'", "set rule"});
  EXPECT_NO_THROW(CheckpointHook({.save_best = "score", .rule = "less"}));
  CheckpointHook hook({.save_best = "accuracyy"});
  hook.before_train(run.context);
  train(hook, 1);
  expect_error<ConfigError>([&] { run.validation(hook, {{"accuracy", 1}, {"loss", 1}}); },
                            {"'accuracyy'", "accuracy, loss"});
}

}  // namespace
}  // namespace duet
