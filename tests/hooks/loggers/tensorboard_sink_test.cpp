// What the files say is checked by foreign/read_logs.py with TensorBoard itself.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "hooks/loggers/sinks.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"

namespace duet {
namespace {

namespace fs = std::filesystem;

TEST(TensorBoardSink, NamesEveryFileAfterThoseThatAreThere) {
  const TempDir dir;
  // Written by a machine whose clock is ahead.
  const std::string other = "events.out.tfevents.4102444800.elsewhere.7.0";
  dir.write(other, "");
  std::string last = other;
  for (int run = 0; run < 12; ++run) {
    tensorboard_sink(dir.path().string())->write({.kind = "start"});
    const std::vector<std::string> names = names_in(dir.path());
    EXPECT_EQ(names.size(), static_cast<size_t>(run + 2));
    EXPECT_GT(names.back(), last);
    last = names.back();
  }
}

TEST(TensorBoardSink, RefusesAFolderThatCannotBeAndAPictureThatIsNone) {
  const TempDir dir;
  const std::string file = dir.write("file", "x");
  expect_error<ConfigError>([&] { tensorboard_sink(file + "/logs"); }, {"[TensorBoardSink]", file});
  const auto sink = tensorboard_sink(dir / "logs");
  expect_error<DataError>([&] { sink->write({.kind = "val", .images = {{"val/0", at::zeros({2, 2})}}}); }, {"[2, 2]"});
}

// TensorBoard forgets what other files of the folder say from the step of such an event on.
int sessions_of(const std::vector<LogRecord>& records) {
  const TempDir dir;
  const auto sink = tensorboard_sink(dir.path().string());
  for (const LogRecord& record : records) sink->write(record);
  std::ifstream file(dir.path() / names_in(dir.path())[0], std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  const std::string start = {0x3a, 2, 8, 1};  // Event.session_log = {status: START}
  int count = 0;
  for (size_t at = bytes.find(start); at != std::string::npos; at = bytes.find(start, at + 1)) ++count;
  return count;
}

TEST(TensorBoardSink, StartsASessionForARunAndWhereItGoesBackButNotForAnEvaluation) {
  const LogRecord start{.kind = "start"}, train{.kind = "train", .step = 6, .values = {{"loss", 1.0}}};
  const LogRecord back{.kind = "void", .step = 3, .values = {{"last_step", int64_t{6}}}};
  for (const char* kind : {"test", "val"}) EXPECT_EQ(sessions_of({{.kind = kind, .step = 100}}), 0) << kind;
  EXPECT_EQ(sessions_of({start, train}), 1);
  EXPECT_EQ(sessions_of({{.kind = "test"}, start, train, start}), 1) << "once per log";
  EXPECT_EQ(sessions_of({start, train, back}), 2);
}

}  // namespace
}  // namespace duet
