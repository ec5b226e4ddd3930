// Lines of steps that a run goes back behind.
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include "hooks/logger_hook.h"
#include "tests/support/fakes.h"
#include "tests/support/log_lines.h"
#include "tests/support/temp_dir.h"

namespace duet {
namespace {

using testing::Json;
using testing::kind_of;
using testing::lines_of;

class UndoneLines : public ::testing::Test {
 protected:
  void SetUp() override {
    run.context.work_dir = folder / "run";
    run.context.progress.max_steps = 200;
  }

  TempDir folder;
  FakeRun run;
  std::string log_file = folder / "run/log.jsonl";
};

TEST_F(UndoneLines, AreMarkedByAResume) {
  std::filesystem::create_directories(run.context.work_dir);
  std::ofstream(log_file) << R"({"kind":"train","step":100})"
                             "\n"
                             R"({"kind":"train","step":150})"
                             "\n"
                          << R"({"kind":"val","step":150,"best":"\"train\""})"
                             "\n";
  for (const int64_t step : {120, 120, 130}) {  // the last one undoes nothing
    LoggerHook hook({.interval = 1, .model_summary = false});
    run.context.progress.step = step;
    hook.before_train(run.context);
    if (step == 120) run.step(hook);
    hook.flush();
  }
  const std::vector<Json> lines = lines_of(log_file), marks = kind_of(lines, "void");
  ASSERT_EQ(marks.size(), 2U);
  EXPECT_EQ(marks[0].at("step"), 120);
  EXPECT_EQ(marks[0].at("last_step"), 150);
  EXPECT_EQ(marks[1].at("last_step"), 121);
  EXPECT_EQ(lines[3].at("kind"), "void");
  EXPECT_EQ(lines[4].at("kind"), "start");
}

TEST_F(UndoneLines, AreMarkedByGoingBack) {
  LoggerHook hook({.interval = 2});
  hook.before_train(run.context);
  for (int i = 0; i < 6; ++i) run.step(hook);
  run.context.progress.step = 3;
  hook.after_load_checkpoint(run.context);
  for (int i = 0; i < 2; ++i) run.step(hook);
  hook.after_load_checkpoint(run.context);  // to where it is
  hook.after_train(run.context);
  const std::vector<Json> marks = kind_of(lines_of(log_file), "void");
  ASSERT_EQ(marks.size(), 1U);
  EXPECT_EQ(marks[0].at("step"), 3);
  EXPECT_EQ(marks[0].at("last_step"), 6);
}

}  // namespace
}  // namespace duet
