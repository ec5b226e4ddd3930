#include <atomic>
#include <filesystem>
#include <stdexcept>
#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include "base/detail/text.h"
#include "base/error.h"
#include "core/detail/param_scheduler_hook.h"
#include "hooks/checkpoint_hook.h"
#include "hooks/detail/run_info_hooks.h"
#include "hooks/logger_hook.h"
#include "tests/support/fakes.h"
#include "tests/support/log_lines.h"
#include "tests/support/loop_runs.h"
#include "tests/support/modes.h"
#include "tests/support/temp_dir.h"

// LoggerHook in whole runs, in both modes.

namespace duet {
namespace {

using testing::EveryPointHook;
using testing::Json;
using testing::kind_of;
using testing::lasting;
using testing::lines_of;
using testing::loader;
using testing::trainer_for;

class LoggerRun : public testing::InBothModes {
 protected:
  TempDir folder;
  const std::string mode = GetParam();

  std::unique_ptr<BaseTrainer> trainer(const std::string& of_mode, int64_t steps) {
    auto made = trainer_for(of_mode, {.max_steps = steps}, "AdamW", folder / "run");
    made->add_hook(std::make_unique<RuntimeInfoHook>());
    made->add_hook(std::make_unique<IterTimerHook>());
    return made;
  }
  void add_schedule(BaseTrainer& to) {
    to.add_hook(std::make_unique<ParamSchedulerHook>(std::vector<Schedule>{Polynomial{.end = 100}}));
  }
};

TEST_P(LoggerRun, WritesWhatHooksLogWhenAnEpochEnds) {
  auto run = trainer_for(mode, {.max_epochs = 2}, "AdamW", folder / "run");
  run->on(HookPoint::kAfterTrainEpoch,
          [](TrainContext& context) { context.log("seen", 10.0 * context.progress.epoch); });
  run->add_hook(std::make_unique<LoggerHook>());
  run->train(*loader(8));
  const std::vector<Json> lines = kind_of(lines_of(folder / "run/log.jsonl"), "epoch");
  ASSERT_EQ(lines.size(), 2U);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(
        lasting(lines[i]),
        Json({{"kind", "epoch"}, {"mode", mode}, {"step", 4 * (i + 1)}, {"epoch", i + 1}, {"seen", 10.0 * (i + 1)}}));
  }
}

// The lines before stay those of the training.
TEST_P(LoggerRun, AnEvaluationOnItsOwnBeginsAndEndsNoRun) {
  const auto run = trainer(mode, 4);
  run->add_hook(std::make_unique<LoggerHook>());
  run->train(*loader(8));
  const std::size_t trained = lines_of(folder / "run/log.jsonl").size();
  run->test(*loader(4));
  run->on(HookPoint::kAfterTestIter, [](TrainContext&) { throw DataError("[Planted] boom"); });
  EXPECT_THROW(run->test(*loader(4)), DataError);
  std::vector<Json> lines = lines_of(folder / "run/log.jsonl");  // written when the run ends
  lines.erase(lines.begin(), lines.begin() + static_cast<std::ptrdiff_t>(trained));
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0].at("kind"), "test");
  EXPECT_EQ(lines[1].at("kind"), "text");
  EXPECT_NE(lines[1].at("test_error").get<std::string>().find("boom"), std::string::npos);
}

// What a host that reads a tensor calls, on any device.
std::atomic<int64_t> reads{0};
std::unique_ptr<at::ObserverContext> count_read(const at::RecordFunction& call) {
  const std::string name = call.name();
  for (const char* read : {"aten::_local_scalar_dense", "aten::item", "aten::is_nonzero", "aten::equal",
                           "aten::_to_copy", "aten::copy_"}) {
    if (name == read) ++reads;
  }
  return nullptr;
}

TEST_P(LoggerRun, ReadsNothingFromTheDeviceBetweenLines) {
  // Reads of the steps (first, last].
  const auto reads_of = [&](bool hooks, int64_t first, int64_t last) {
    const auto run = trainer_for(mode, {.max_steps = 220}, "AdamW", folder / "run");
    add_schedule(*run);  // looks its numbers up on the device
    if (hooks) {
      run->add_hook(std::make_unique<RuntimeInfoHook>());
      run->add_hook(std::make_unique<IterTimerHook>());
      run->add_hook(std::make_unique<LoggerHook>());
      run->add_hook(std::make_unique<CheckpointHook>());
    }
    int64_t before = 0, found = -1;
    run->add_hook(std::make_unique<EveryPointHook>("window", [&](const std::string& point, TrainContext& context) {
      if (point != "before_train_iter") return;
      if (context.progress.step == first) before = reads;
      if (context.progress.step == last) found = reads - before;
    }));
    const auto data = loader(16);
    run->train(*data);
    return found;
  };
  const at::CallbackHandle handle =
      at::addGlobalCallback(at::RecordFunctionCallback(count_read).scopes({at::RecordScope::FUNCTION}));
  reads_of(false, 151, 199);  // kernels that a process tries once
  EXPECT_EQ(reads_of(true, 151, 199), reads_of(false, 151, 199));
  EXPECT_GT(reads_of(true, 151, 201), reads_of(false, 151, 201)) << "the line of step 200 reads";
  at::removeCallback(handle);
}

TEST_P(LoggerRun, WritesTheSameLinesAfterAResumeInTheOtherMode) {
  const auto options = [&](const std::string& file) {
    LoggerHookOptions logger{.interval = 4, .file = folder / file};
    logger.window.custom_cfg = {{"loss", "median", kEpochWindow, "epoch_median"},
                                {"loss", "max", kGlobalWindow, "max"}};
    return logger;
  };
  const auto train = [&](const std::string& of_mode, int64_t steps, const std::string& file, const std::string& from) {
    auto run = trainer(of_mode, steps);
    add_schedule(*run);
    run->add_hook(std::make_unique<LoggerHook>(options(file)));
    run->add_hook(std::make_unique<CheckpointHook>());
    if (!from.empty()) run->load(from);
    const auto data = loader(14);
    run->train(*data);
    return run;
  };
  train(mode, 40, "whole.jsonl", "");
  const auto first = train(mode, 23, "parts.jsonl", "");
  const std::string saved = first->save(folder / "saved");
  train(mode == "eager" ? "graph" : "eager", 40, "parts.jsonl", saved);

  const auto tail = [&](const std::string& file) {
    std::vector<Json> found;
    for (Json line : kind_of(lines_of(folder / file), "train")) {
      if (line.at("step") <= 23) continue;
      line.erase("mode");
      found.push_back(lasting(line));
    }
    return found;
  };
  ASSERT_EQ(tail("whole.jsonl").size(), 5U);
  const Json last = kind_of(lines_of(folder / "whole.jsonl"), "train").back();
  for (const char* name : {"memory", "samples_per_second", "time"}) EXPECT_GT(last.at(name).get<double>(), 0) << name;
  EXPECT_EQ(tail("parts.jsonl"), tail("whole.jsonl"));
  const std::vector<Json> parts = lines_of(folder / "parts.jsonl");
  EXPECT_EQ(parts.front().at("run_id"), parts.back().at("run_id"));
  EXPECT_EQ(parts.front().at("kind"), "start");  // whatever other hooks have to say: sinks go by the first record
}

// Whichever hook finds it, before the logger's turn or after it, and whether others are told at once.
TEST_P(LoggerRun, EndsOnceWithWhatTheRunHasComeTo) {
  const auto told = [](TrainContext& context) {
    context.control.fail("no space left");
    throw NonFiniteError("no space left");
  };
  const auto thrown = [](TrainContext&) { throw std::runtime_error("no space left"); };
  const auto diverges = [](TrainContext& context) { context.control.stop_diverged("no space left"); };
  const auto last_line = [&](HookPoint point, const std::function<void(TrainContext&)>& act, int priority) {
    const TempDir place;
    const auto run = trainer_for(mode, {.max_steps = 6}, "AdamW", place / "run");
    run->add_hook(std::make_unique<LoggerHook>(LoggerHookOptions{.interval = 2}));
    run->on(point, act, "finder", priority);
    const auto data = loader(16);
    static_cast<void>(caught([&] { run->train(*data); }));
    const std::vector<Json> lines = lines_of(place / "run/log.jsonl");
    EXPECT_EQ(kind_of(lines, "stop").size() + kind_of(lines, "error").size(), 1U);
    EXPECT_EQ(kind_of(lines, "train").size(), 3U);
    return lines.back();
  };
  for (const int priority : {kVeryHigh, kLowest}) {
    for (const auto& act : {std::function<void(TrainContext&)>(told), {thrown}}) {
      const Json line = last_line(HookPoint::kAfterTrain, act, priority);
      EXPECT_NE(line.value("error", "none").find("no space left"), std::string::npos) << line;
    }
    EXPECT_EQ(last_line(HookPoint::kAfterTrain, diverges, priority).at("outcome"), "diverged") << priority;
  }
}

DUET_IN_BOTH_MODES(LoggerRun);

TEST(LoggerSinks, OpenTheirPlacesInTheWorkDir) {
  const TempDir folder;
  FakeTrainer run({.max_steps = 4}, folder / "run");
  LoggerHookOptions options{.interval = 2};
  options.sinks = {{"tensorboard"}, {"wandb"}, {.type = "jsonl", .file = folder / "own.jsonl"}};
  run.add_hook(std::make_unique<LoggerHook>(options));
  FakeData data(5);
  run.train(data);
  EXPECT_TRUE(std::filesystem::exists(folder / "run/tensorboard"));
  const std::string id = lines_of(folder / "own.jsonl").front().at("run_id");
  bool found = false;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder / "run/wandb")) {
    found = found || entry.path().filename() == "run-" + id + ".wandb";
  }
  EXPECT_TRUE(found) << id;

  const TempDir empty;
  FakeTrainer nowhere({.max_steps = 4});
  options.sinks.pop_back();
  nowhere.add_hook(std::make_unique<LoggerHook>(options));
  FakeData again(5);
  nowhere.train(again);  // no work_dir, nothing to open
}

}  // namespace
}  // namespace duet
