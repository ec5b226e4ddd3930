#include <string>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include "cli/runs/run_folder.h"
#include "cli/runs/text_columns.h"
#include "tests/support/peak_memory.h"
#include "tests/support/temp_dir.h"

namespace duet {
namespace {

constexpr const char* kGoodLine = R"({"kind":"train","loss":0.5,"step":7})";

TEST(LoggedRun, PassesOverALineThatIsTooLong) {
  const TempDir folder;
  const std::string long_line = R"({"kind":"train","loss":1,"step":3})" + std::string(100 << 20, ' ');
  const std::string path = folder.write("log.jsonl", long_line + "\n" + kGoodLine + "\n" + kGoodLine);
  LoggedRun log;
  EXPECT_LT(peak_memory([&] { log = read_logged_run(path); }), uint64_t{48} << 20);
  EXPECT_EQ(log.lines, 3);
  EXPECT_EQ(log.unreadable_lines, 1);
  ASSERT_NE(log.curve("train", "loss"), nullptr);
  ASSERT_EQ(log.curve("train", "loss")->points.size(), 1U);
  EXPECT_EQ(log.curve("train", "loss")->points[0].step, 7);
}

TEST(LoggedRun, KeepsTheFirstOfMoreNamesThanARunHas) {
  std::string lines;
  for (int name = 0; name < 25'000; name += 5'000) {
    lines += R"({"kind":"train","step":1)";
    for (int i = name; i < name + 5'000; ++i) lines += ",\"v" + std::to_string(i) + "\":1";
    lines += "}\n";
  }
  lines += R"({"kind":"text","step":1,"a":"x"})"
           "\n"
           R"({"kind":"train","v0":2,"step":2})";
  const TempDir folder;
  const LoggedRun log = read_logged_run(folder.write("log.jsonl", lines));
  EXPECT_EQ(log.curves.size() + log.texts.size(), 20'000U);
  EXPECT_EQ(log.lines, 7);
  EXPECT_EQ(log.unreadable_lines, 2);
  EXPECT_EQ(log.curve("train", "v0")->points.size(), 2U);
}

TEST(LoggedRun, UndoesWhatARunWentBackBehind) {
  std::string lines;
  for (int step = 1; step <= 5; ++step) {
    const std::string at = ",\"step\":" + std::to_string(step) + "}\n";
    lines += R"({"kind":"train","loss":1)" + at + R"({"kind":"histogram","w":{"counts":[1],"edges":[0,1]})" + at;
  }
  const TempDir folder;
  const LoggedRun log = read_logged_run(folder.write("log.jsonl", lines + R"({"kind":"void","step":2,"last_step":5})"));
  EXPECT_EQ(log.curve("train", "loss")->points.size(), 2U);
  EXPECT_EQ(log.histograms.size(), 2U);
  EXPECT_EQ(log.step, 2);
}

TEST(LoggedRun, KnowsWhatTheLinesOfEpochsAndAnErrorSay) {
  const TempDir folder;
  const LoggedRun log = read_logged_run(
      folder.write("log.jsonl", R"({"kind":"epoch","epoch":1,"epoch_time":2.5,"train_acc":0.5,"step":4})"
                                "\n"
                                R"({"kind":"error","error":"a broken file","step":6})"));
  ASSERT_NE(log.curve("train", "train_acc"), nullptr);
  EXPECT_EQ(log.curve("train", "train_acc")->points.back().value, 0.5);
  EXPECT_EQ(log.curve("train", "epoch_time")->points.back().value, 2.5);
  EXPECT_EQ(log.epoch, 1);
  EXPECT_EQ(log.step, 6);
}

TEST(TextColumns, AlignWhatIsShown) {
  EXPECT_EQ(text_columns({{"a\x1b", "b"}, {"größe", "c"}}), "a\\x1b  b\ngröße  c\n");
}

// `duet list` looks into every folder that it finds: nothing there may keep it waiting.
TEST(RunFolder, PipesAreNoFilesOfARun) {
  const TempDir folder;
  for (const char* name : {"log.jsonl", "config.yaml", "run.lock"}) ASSERT_EQ(mkfifo((folder / name).c_str(), 0600), 0);
  EXPECT_FALSE(is_run_folder(folder.path().string()));
  EXPECT_EQ(read_logged_run(folder / "log.jsonl").lines, 0);
  EXPECT_EQ(status_of_run(folder.path().string(), LoggedRun()), RunStatus::kNoLog);
  EXPECT_NE(read_saved_config(folder / "config.yaml").problem.find("not a regular file"), std::string::npos);
}

}  // namespace
}  // namespace duet
