// What the files say is checked by foreign/read_logs.py with TensorBoard itself.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "hooks/loggers/sinks.h"
#include "tests/support/expect_error.h"
#include "tests/support/full_disk.h"
#include "tests/support/temp_dir.h"

namespace duet {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> files_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

TEST(TensorBoardSink, CreatesItsFolderAtOnceAndTheFileWithTheFirstRecord) {
  const TempDir dir;
  const auto sink = tensorboard_sink(dir / "a/tensorboard");
  EXPECT_TRUE(files_in(dir.path() / "a/tensorboard").empty());
  sink->write({.kind = "train", .step = 1, .values = {{"loss", 1.0}}});
  EXPECT_EQ(files_in(dir.path() / "a/tensorboard").size(), 1U);
}

TEST(TensorBoardSink, NamesEveryFileAfterThoseThatAreThere) {
  const TempDir dir;
  // Written by a machine whose clock is ahead.
  const std::string other = "events.out.tfevents.4102444800.elsewhere.7.0";
  dir.write(other, "");
  std::string last = other;
  for (int run = 0; run < 12; ++run) {
    tensorboard_sink(dir.path().string())->write({.kind = "start"});
    const std::vector<std::string> names = files_in(dir.path());
    EXPECT_EQ(names.size(), static_cast<size_t>(run + 2));
    EXPECT_GT(names.back(), last);
    last = names.back();
  }
}

TEST(TensorBoardSink, HasARecordInTheFileWhenWriteReturns) {
  const TempDir dir;
  const auto sink = tensorboard_sink(dir.path().string());
  sink->write({.kind = "start"});
  const fs::path file = dir.path() / files_in(dir.path())[0];
  for (int64_t step = 1; step < 5; ++step) {
    const auto before = fs::file_size(file);
    sink->write({.kind = "train", .step = step, .values = {{"loss", 1.0}, {"eta", "1:00"}}});
    EXPECT_GT(fs::file_size(file), before);
  }
}

TEST(TensorBoardSink, SaysThatTheDiskIsFull) {
  const TempDir dir;
  const auto sink = tensorboard_sink(dir.path().string());
  sink->write({.kind = "start"});
  const LogRecord record{.kind = "text", .values = {{"long", std::string(5000, 'x')}}};
  const FullDisk disk(4096);
  expect_error<Error>([&] { sink->write(record); },
                      {"[TensorBoardSink]", "cannot write", "events.out.tfevents", "File too large"});
}

TEST(TensorBoardSink, RefusesAFolderThatCannotBeAndAPictureThatIsNone) {
  const TempDir dir;
  const std::string file = dir.write("file", "x");
  expect_error<ConfigError>([&] { tensorboard_sink(file + "/logs"); }, {"[TensorBoardSink]", file});
  const auto sink = tensorboard_sink(dir / "logs");
  expect_error<DataError>([&] { sink->write({.kind = "val", .images = {{"val/0", at::zeros({2, 2})}}}); }, {"[2, 2]"});
}

// TensorBoard forgets what other files of the folder say from the step of such an event on.
TEST(TensorBoardSink, StartsASessionForARunButNotForAnEvaluationOnItsOwn) {
  const std::string start = {0x3a, 2, 8, 1};  // Event.session_log = {status: START}
  for (const auto& [kind, expected] : {std::pair{"start", true}, {"test", false}, {"val", false}}) {
    const TempDir dir;
    tensorboard_sink(dir.path().string())->write({.kind = kind, .step = 100, .values = {{"loss", 1.0}}});
    std::ifstream file(dir.path() / files_in(dir.path())[0], std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), {}};
    EXPECT_EQ(bytes.find(start) != std::string::npos, expected) << kind;
  }
}

TEST(TensorBoardSink, StartsASessionWhereARunGoesBack) {
  const std::string start = {0x3a, 2, 8, 1};
  const TempDir dir;
  const auto sink = tensorboard_sink(dir.path().string());
  const auto sessions = [&] {
    std::ifstream file(dir.path() / files_in(dir.path())[0], std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), {}};
    int count = 0;
    for (size_t at = bytes.find(start); at != std::string::npos; at = bytes.find(start, at + 1)) ++count;
    return count;
  };
  sink->write({.kind = "start"});
  sink->write({.kind = "train", .step = 6, .values = {{"loss", 1.0}}});
  EXPECT_EQ(sessions(), 1);
  sink->write({.kind = "void", .step = 3, .values = {{"last_step", int64_t{6}}}});
  EXPECT_EQ(sessions(), 2);
}

TEST(TensorBoardSink, StartsASessionForARunAfterAnEvaluation) {
  const std::string start = {0x3a, 2, 8, 1};
  const TempDir dir;
  {
    const auto sink = tensorboard_sink(dir.path().string());
    for (const char* kind : {"test", "start", "train", "start"})
      sink->write({.kind = kind, .step = 100, .values = {{"loss", 1.0}}});
  }
  std::ifstream file(dir.path() / files_in(dir.path())[0], std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  EXPECT_NE(bytes.find(start), std::string::npos);
  EXPECT_EQ(bytes.find(start), bytes.rfind(start)) << "once per log";
}

}  // namespace
}  // namespace duet
